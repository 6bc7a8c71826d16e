// Sets: an expression of names, the features that it means, and the examples that score highest in them.

import { keepAddress } from "./address.js";
import { ExpressionError, quoted, tokensOf } from "./expression.js";
import { fieldsCard } from "./fields.js";
import { completions, fieldOf, firstObjects, isHeld, objectName, vocabulary } from "./model.js";
import { barList, card, exampleTile, featureLink, h, percent, pictureOf, plain, strip, whole } from "./parts.js";

const FEATURES = 30, LATER = 120;

export function sets(model, text) {
  const answer = h("div", {}), choices = h("ul", { class: "choices", "aria-label": "Names" });
  const marker = h("pre", { class: "marker", "aria-hidden": "true" }), problem = h("p", { class: "problem", id: "problem", role: "alert" });
  const input = h("input", { type: "text", class: "expression", id: "expression", value: text, spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-describedby": "problem", oninput: typed, onkeydown: complete });
  let timer = 0, asked = 0;
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
    // Answers of earlier questions may come later.
    const mine = ++asked;
    try {
      const found = await fieldOf(model, wanted);
      if (mine !== asked) return null;
      answer.replaceChildren(...field(model, found));
      const graph = await fieldsCard(model, found.sizes.map(([name]) => [name, vocabulary(model).get(name)]));
      if (mine === asked && graph) answer.append(h("div", { class: "cards after" }, graph));
    } catch (error) {
      if (mine !== asked) return null;
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
  const names = firstObjects(model).map((object) => quoted(objectName(model, object))), [a, b, c] = names;
  const written = [[a, b].join(" & "), [a, b].join(" - "), `${[a, b].join(" & ")} - ${c}`].slice(0, names.length);
  return card("For example", h("div", { class: "row" }, written.filter(tokensFit).map((text) => h("button", { onclick: () => take(text) }, text))));
}

function tokensFit(text) {
  try { return tokensOf(text).length > 1; } catch { return false; }
}

function field(model, found) {
  const known = vocabulary(model), count = found.members.length;
  const sizes = found.sizes.map(([name, value]) => ({ label: [known.has(name) ? pictureOf(model, known.get(name), 26) : null, h("span", {}, name)], value, shown: whole(value) }));
  const bars = barList([...sizes, { label: [h("strong", {}, "this set")], value: count, kind: "common", shown: whole(count) }]);
  const tile = ([name, score]) => {
    const { index } = known.get(name);
    return isHeld(model, index) ? exampleTile(model, index, { caption: plain(score, 2) })
      : h("a", { class: "tile named", href: `#/pair/e${index}` }, name, h("span", { class: "caption" }, plain(score, 2)));
  };
  return [
    h("p", { class: "verdict", id: "size" }, `${whole(count)} of ${whole(model.K)} features (${percent(count / model.K)})`),
    h("div", { class: "cards" }, card("Sizes", bars), card("Its features", h("div", { class: "row" }, found.members.slice(0, FEATURES).map((k) => h("span", { class: "chip" }, featureLink(model, k))), count > FEATURES ? h("span", { class: "soft" }, `and ${whole(count - FEATURES)} more`) : null))),
    count ? card("Examples that score highest in it", strip(found.ranking.map(tile))) : h("p", { class: "soft" }, "No feature is left: every example scores 0 in an empty set."),
  ];
}
