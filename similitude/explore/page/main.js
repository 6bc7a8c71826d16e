// The page: reads the data, draws the screen that the address names, and draws it again when the address changes.

import { followLinks } from "./address.js";
import { compare } from "./compare.js";
import { edit } from "./edit.js";
import { feature, features } from "./features.js";
import { firstObjects, objectOf, openModels } from "./model.js";
import { overview } from "./overview.js";
import { pair } from "./pair.js";
import { h, say } from "./parts.js";
import { prototype, prototypes } from "./prototypes.js";
import { firstQuery, search } from "./search.js";
import { sets } from "./sets.js";
import { openSource } from "./source.js";
import { why, whyIndex, whyKeys } from "./why.js";

const SCREENS = [["", "Overview"], ["features", "Features"], ["prototypes", "Prototypes"], ["why", "Why"], ["pair", "Two objects"], ["sets", "Sets"], ["search", "Search"], ["edit", "Edit"], ["compare", "Compare"]];
// Pages of single things, and the screens that they belong to.
const WITHIN = { feature: "features", prototype: "prototypes" };

// Milliseconds after the first screen, so that it is drawn before what it does not need is read.
const LATER = 100;

const content = document.getElementById("content");
let model = null, keys = null, drawn = 0;

// The screen that an address names: #/feature/17, #/why/12/7/9, #/sets/a%20%26%20b.
function screenOf(name, rest, question) {
  const number = (text, most) => (/^\d+$/.test(text ?? "") && Number(text) < most ? Number(text) : null);
  const first = number(rest[0], { feature: model.K, prototype: model.P, why: model.H }[name] ?? 0);
  const whole = ["feature", "prototype"].includes(name) || (name === "why" && rest.length);
  if (whole && first === null) return missing(`There is no ${name === "why" ? "example" : name} ${rest[0] ?? ""}.`);
  if (["why", "prototypes", "prototype"].includes(name) && !model.P) return missing("These objects have no prototypes that answer.");
  switch (name) {
    case "": return overview(model);
    case "features": return features(model);
    case "feature": return feature(model, first);
    case "prototypes": return prototypes(model);
    case "prototype": return prototype(model, first);
    case "why":
      if (!rest.length) return whyIndex(model, question);
      keys = (event) => whyKeys(event, first, model);
      return why(model, first, number(rest[1], model.P), number(rest[2], model.P));
    case "pair": {
      const usual = rest.length < 2 ? firstObjects(model) : [], [a, b] = [0, 1].map((i) => (rest[i] ? objectOf(model, rest[i]) : usual[i] ?? usual[0]));
      return a && b ? pair(model, a, b) : missing("There is no such object.");
    }
    case "search": {
      const query = rest[0] ? objectOf(model, rest[0]) : firstQuery(model);
      return query ? search(model, query, rest[1]) : missing("There is no such object.");
    }
    case "compare": return compare(model);
    case "edit": return edit(model, rest[0], number(rest[1], Math.max(model.P, model.K)) ?? 0);
    case "sets": return sets(model, rest.join("/"));
  }
  return missing("There is no such screen.");
}

function missing(sentence) {
  return [h("h1", {}, sentence), h("p", {}, h("a", { href: "#/" }, "Go to the overview"))];
}

async function draw(moved) {
  const mine = ++drawn;
  const [path, question = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try { parts = path.split("/").map(decodeURIComponent); } catch { parts = ["?"]; }
  const [name, ...rest] = parts;
  keys = null;
  if (name !== "" || !model.data.salience) await Promise.all([model, model.beside].map((one) => one?.whole()));
  const made = await screenOf(name, rest.filter((part) => part !== ""), question);
  // Another screen was asked for meanwhile.
  if (mine !== drawn) return;
  const elements = made.flat().filter(Boolean);
  content.replaceChildren(...elements);
  const own = WITHIN[name] ?? name, label = content.querySelector("h1")?.textContent ?? "";
  for (const link of document.querySelectorAll("#screens a")) {
    if (link.getAttribute("href") === `#/${own}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = label === model.about.title ? label : `${label} · ${model.about.title}`;
  if (moved) {
    window.scrollTo(0, 0);
    content.focus({ preventScroll: true });
  }
}

// The same screen again, where the reader was: after a feature was switched off.
async function redraw() {
  const { scrollX, scrollY } = window, focused = document.activeElement?.getAttribute?.("aria-label");
  await draw(false);
  window.scrollTo(scrollX, scrollY);
  const other = focused?.endsWith(" off") ? focused.replace(/ off$/, " on") : focused?.replace(/ on$/, " off");
  [...content.querySelectorAll("button[aria-label]")].find((b) => [focused, other].includes(b.getAttribute("aria-label")))?.focus({ preventScroll: true });
}

async function start() {
  const source = await openSource();
  model = await openModels(source);
  document.getElementById("title").textContent = model.about.title;
  const shown = SCREENS.filter(([name]) => (model.P || !["prototypes", "why", "edit"].includes(name)) && (model.beside || name !== "compare"));
  document.getElementById("screens").append(...shown.map(([name, label]) => h("a", { href: `#/${name}` }, label)));
  const notes = [...model.about.left_out, model.about.note_of_page].filter(Boolean);
  document.getElementById("foot").append(...notes.map((note) => h("p", {}, note)));
  document.getElementById("skip").addEventListener("click", () => content.focus());
  window.addEventListener("hashchange", () => draw(true).catch(fail));
  window.addEventListener("redraw", () => redraw().catch(fail));
  // An edit changed the network: all that is shown is read again.
  window.addEventListener("changed", async (event) => {
    source.forget();
    model = await openModels(source);
    redraw();
    say(event.detail);
  });
  followLinks();
  window.addEventListener("keydown", (event) => keys?.(event));
  await draw(false);
  document.documentElement.dataset.ready = "yes";
  // The next screen will need them.
  setTimeout(() => model.whole(), LATER);
}

function fail(error) {
  content.replaceChildren(h("h1", {}, "This cannot be shown"), h("p", {}, error.message));
  document.documentElement.dataset.ready = "failed";
}

start().catch(fail);
