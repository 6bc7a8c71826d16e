// Rules for the modules of all pages: eslint --config tests/explore/eslint.config.mjs similitude
// It imports nothing, so that eslint alone is enough.

const GLOBALS = [
  "atob", "Blob", "clearTimeout", "CustomEvent", "devicePixelRatio", "document", "Event", "fetch", "getComputedStyle", "history",
  "localStorage", "location", "matchMedia", "requestAnimationFrame", "ResizeObserver", "sessionStorage", "setTimeout", "URL",
  "URLSearchParams", "window",
];
// What would read text from the data as markup or as code.
const MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML", "write", "writeln", "srcdoc"];
const names = ["error", { args: "after-used", argsIgnorePattern: "^_", caughtErrors: "all", varsIgnorePattern: "^_" }];

export default [
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: Object.fromEntries(GLOBALS.map((name) => [name, "readonly"])) },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "no-restricted-properties": ["error", ...MARKUP.map((property) => ({ property, message: "text enters as text" }))],
      "no-unused-vars": names,
      "no-shadow": ["error", { builtinGlobals: false }],
      ...Object.fromEntries([
        "array-callback-return", "constructor-super", "eqeqeq", "for-direction", "getter-return", "no-class-assign", "no-cond-assign",
        "no-const-assign", "no-constant-binary-expression", "no-constant-condition", "no-dupe-args", "no-dupe-else-if", "no-dupe-keys",
        "no-duplicate-case", "no-duplicate-imports", "no-eval", "no-fallthrough", "no-func-assign", "no-global-assign", "no-implied-eval",
        "no-import-assign", "no-invalid-regexp", "no-irregular-whitespace", "no-new-func", "no-script-url", "no-self-assign",
        "no-self-compare", "no-setter-return", "no-template-curly-in-string", "no-this-before-super", "no-undef", "no-unreachable",
        "no-unsafe-finally", "no-unsafe-negation", "no-unsafe-optional-chaining", "no-unused-expressions", "no-useless-assignment",
        "no-useless-catch", "no-useless-escape", "no-useless-return", "no-var", "prefer-const", "use-isnan",
        "valid-typeof",
      ].map((rule) => [rule, "error"])),
    },
  },
];
