// Sets: an expression of names, the features that it means, and the examples that score highest in them.

import { ExpressionError, tokensOf } from "./expression.js";
import { addressOf, completions, fieldOf, objectName } from "./model.js";
import { keepAddress } from "./address.js";
import { barList, card, exampleTile, featureLink, h, percent, pictureOf, plain, strip, whole } from "./parts.js";

const SHOWN = 40, FEATURES = 30, LATER = 250;

export function sets(model, text) {
  const answer = h("div", {}), choices = h("ul", { class: "choices", "aria-label": "Names" });
  const marker = h("pre", { class: "marker", "aria-hidden": "true" }), problem = h("p", { class: "problem", id: "problem", role: "alert" });
  const input = h("input", { type: "text", class: "expression", id: "expression", value: text, spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-describedby": "problem", oninput: typed, onkeydown: complete });
  let timer = 0;
  function typed() {
    offer();
    clearTimeout(timer);
    timer = setTimeout(show, LATER);
  }
  // The name under the cursor, and what it may become.
  function current() {
    const before = input.value.slice(0, input.selectionStart ?? input.value.length);
    return /[^\s|∪^△&∩\-−∖~∁()"']*$/u.exec(before)[0];
  }
  function offer() {
    const start = current(), found = start ? completions(model, start) : [];
    choices.replaceChildren(...found.map((name) => h("li", {}, h("button", { type: "button", class: "small", onclick: () => take(name) }, name))));
  }
  function take(name) {
    const end = input.selectionStart ?? input.value.length, start = end - current().length;
    input.value = input.value.slice(0, start) + name.replace(/^[Ġ▁]/u, "") + input.value.slice(end);
    input.focus();
    choices.replaceChildren();
    show();
  }
  function complete(event) {
    const first = choices.querySelector("button");
    if (event.key === "Tab" && !event.shiftKey && first && current()) {
      event.preventDefault();
      take(first.textContent);
    } else if (event.key === "Enter") {
      clearTimeout(timer);
      show();
    }
  }
  async function show() {
    const wanted = input.value;
    marker.textContent = problem.textContent = "";
    if (!wanted.trim()) return answer.replaceChildren(examples(model, (t) => { input.value = t; show(); }));
    keepAddress(`#/sets/${encodeURIComponent(wanted)}`);
    try {
      answer.replaceChildren(...field(model, fieldOf(model, wanted)));
    } catch (error) {
      if (!(error instanceof ExpressionError)) throw error;
      marker.textContent = `${" ".repeat(error.position)}↑`;
      problem.textContent = error.message;
      answer.replaceChildren();
    }
    return null;
  }
  show();
  return [
    h("h1", {}, "Sets"),
    h("p", { class: "lead" }, "Names stand for the features that they have. & is what both have, | what either has, − what the first has without the second, ^ what one of both has, ~ all others."),
    h("label", { for: "expression", class: "soft" }, "Expression"), input, marker, problem, choices, answer,
  ];
}

function examples(model, take) {
  const name = (i) => objectName(model, i < model.P ? { kind: "prototype", index: i } : { kind: "example", index: i - model.P });
  const [a, b, c] = [0, 1, 2].map((i) => name(Math.min(i, model.P + model.H - 1)));
  const written = [`${a} & ${b}`, `${a} - ${b}`, `${a} & ${b} - ${c}`].filter((text) => tokensFit(text));
  return card("For example", h("div", { class: "row" }, written.map((text) => h("button", { onclick: () => take(text) }, text))));
}

function tokensFit(text) {
  try { return tokensOf(text).length > 1; } catch { return false; }
}

function field(model, found) {
  const sizes = [...found.named].map(([name, { object, set }]) => ({ label: [pictureOf(model, object, 26), h("span", {}, name)], value: set.reduce((n, v) => n + v, 0) }));
  const count = found.members.length;
  const bars = barList([...sizes, { label: [h("strong", {}, "this set")], value: count, kind: "common" }].map((row) => ({ ...row, shown: whole(row.value) })));
  const named = [...found.named.values()].map(({ object }) => object);
  const order = found.order.slice(0, SHOWN);
  const highest = named.filter((o) => o.kind === "example").map(addressOf);
  return [
    h("p", { class: "verdict", id: "size" }, `${whole(count)} of ${whole(model.K)} features (${percent(count / model.K)})`),
    h("div", { class: "cards" }, card("Sizes", bars), card("Its features", h("div", { class: "row" }, found.members.slice(0, FEATURES).map((k) => h("span", { class: "chip" }, featureLink(model, k))), count > FEATURES ? h("span", { class: "soft" }, `and ${whole(count - FEATURES)} more`) : null))),
    count ? card("Examples that score highest in it", strip(order.map((i) => exampleTile(model, i, { caption: `${plain(found.scores[i], 2)}${highest.includes(`e${i}`) ? " (named)" : ""}` }))))
      : h("p", { class: "soft" }, "No feature is left: every example scores 0 in an empty set."),
  ];
}
