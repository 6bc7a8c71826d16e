// Set expressions as text, `bad & good - worse`, with the grammar of interpret/expression.py.

const LEVELS = [
  ["|∪", (a, b) => a | b],
  ["^△", (a, b) => a ^ b],
  ["&∩", (a, b) => a & b],
  ["-−∖", (a, b) => a & (1 - b)],
];
const COMPLEMENT = "~∁", QUOTES = "\"'", MARKS = LEVELS.map(([signs]) => signs).join("") + COMPLEMENT + "()";
const LONGEST = 10000, DEEPEST = 100;
// What Python takes for a space, which is not quite what \s is.
const SPACE = /[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/;

// A name as Python's errors show it.
function inQuotes(name) {
  const hex = (c) => `\\x${c.codePointAt(0).toString(16).padStart(2, "0")}`;
  const text = name.replaceAll("\\", "\\\\").replace(/[\x00-\x1f\x7f-\xa0\xad]/g, (c) => ({ "\n": "\\n", "\r": "\\r", "\t": "\\t" })[c] ?? hex(c));
  return name.includes("'") && !name.includes('"') ? `"${text}"` : `'${text.replaceAll("'", "\\'")}'`;
}

// An expression that cannot be read: the problem, and its position in the text.
export class ExpressionError extends Error {
  constructor(problem, position) {
    super(`character ${position + 1}: ${problem}.`);
    this.problem = problem;
    this.position = position;
  }
}

// Marks and names of the text in their order, then an end. Characters are counted as Python counts them.
export function tokensOf(text) {
  const all = Array.from(text), found = [];
  let i = 0;
  while (i < all.length) {
    const start = i, c = all[i];
    if (SPACE.test(c)) i++;
    else if (MARKS.includes(c)) {
      found.push({ kind: c, name: c, position: start });
      i++;
    } else if (QUOTES.includes(c)) {
      const name = [];
      i++;
      while (i < all.length && all[i] !== c) {
        if (all[i] === "\\" && ["\\", ...QUOTES].includes(all[i + 1])) i++;
        name.push(all[i++]);
      }
      if (i >= all.length) throw new ExpressionError(`the quote ${c} is not closed`, start);
      if (!name.length) throw new ExpressionError("there is no name in the quotes", start);
      i++;
      found.push({ kind: "quoted", name: name.join(""), position: start });
    } else {
      while (i < all.length && !SPACE.test(all[i]) && !(MARKS + QUOTES).includes(all[i])) i++;
      found.push({ kind: "name", name: all.slice(start, i).join(""), position: start });
    }
  }
  return [...found, { kind: "end", name: "", position: all.length }];
}

// The name as an expression writes it, in quotes if it needs them.
export function quoted(name) {
  const plain = name && !Array.from(name).some((c) => SPACE.test(c) || (MARKS + QUOTES).includes(c));
  return plain ? name : `"${name.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
}

// The set that a text means, K numbers of 0 and 1. lookup(name, quoted) returns such a set, or throws a string.
export function evaluate(text, lookup) {
  const length = Array.from(text).length;
  if (length > LONGEST) {
    const [most, given] = [LONGEST, length].map((n) => n.toLocaleString("en"));
    throw new ExpressionError(`an expression has at most ${most} characters; this has ${given}`, LONGEST);
  }
  const tokens = tokensOf(text);
  let at = 0, depth = 0;
  const next = () => tokens[at];
  const fail = (problem, token = next()) => { throw new ExpressionError(problem, token.position); };
  const combined = (a, b, combine) => a.map((x, k) => combine(x, b[k]));

  function expression(level = 0) {
    if (level === LEVELS.length) return operand();
    const [signs, combine] = LEVELS[level];
    let value = expression(level + 1);
    while (next().kind.length === 1 && signs.includes(next().kind)) {
      at++;
      value = combined(value, expression(level + 1), combine);
    }
    return value;
  }

  function operand() {
    let flips = 0;
    for (; next().kind.length === 1 && COMPLEMENT.includes(next().kind); at++) flips++;
    const token = next();
    let value;
    if (token.kind === "(") value = parenthesis();
    else if (token.kind === "name" || token.kind === "quoted") {
      at++;
      value = named(token);
    } else {
      const found = token.kind === "end" ? "the expression ends" : `there is ${inQuotes(token.name)}`;
      fail(`expected a name or a parenthesis, and ${found}`);
    }
    return flips % 2 ? value.map((x) => 1 - x) : value;
  }

  function parenthesis() {
    const opened = next();
    if (depth === DEEPEST) fail(`parentheses may stand at most ${DEEPEST} deep`);
    at++;
    depth++;
    const value = expression();
    if (next().kind === "end") fail("the parenthesis is not closed", opened);
    if (next().kind !== ")") fail(`expected an operator or ')' before ${inQuotes(next().name)}`);
    at++;
    depth--;
    return value;
  }

  function named(token) {
    try {
      return lookup(token.name, token.kind === "quoted");
    } catch (problem) {
      if (typeof problem !== "string") throw problem;
      return fail(problem, token);
    }
  }

  const value = expression();
  if (next().kind === ")") fail("this parenthesis closes nothing");
  if (next().kind !== "end") fail(`expected an operator (| ^ & -) before ${inQuotes(next().name)}`);
  return value;
}
