// Compare: two models side by side, their features matched by the examples that have them.

import { descending } from "./arithmetic.js";
import { answerOf, className, exampleName, featureName, labelOf } from "./model.js";
import { barList, card, exampleTile, featureLink, h, percent, pictureOf, plain, thumb, whole, wideCard } from "./parts.js";

const PAIRS = 20, DIFFERING = 60;

export function compare(model) {
  const other = model.beside;
  if (!other) {
    return [h("h1", {}, "Compare"), h("p", {}, "Only one model is here. Give another one to look at beside it:"), h("p", {}, h("code", {}, "similitude explore RUN --beside RUN")), h("p", {}, h("code", {}, "explore(model, inputs, beside=other)"))];
  }
  const [A, B] = [model.about.title, other.about.title];
  return [
    h("h1", {}, "Compare"),
    h("p", { class: "lead" }, `A is ${A}, B is ${B}. Both are shown the same examples.`),
    h("div", { class: "cards" }, numbers(model, other), likenesses(model)),
    h("div", { class: "cards" }, matches(model, other), differing(model, other)),
  ];
}

function numbers(model, other) {
  const rows = [
    ["features", (m) => whole(m.K)], ["prototypes", (m) => whole(m.P)], ["parameters", (m) => whole(m.layer.parameters)],
    ["accuracy", (m) => (m.about.accuracy === undefined ? "–" : percent(m.about.accuracy))],
    ["α", (m) => plain(m.layer.alpha)], ["β", (m) => plain(m.layer.beta)], ["θ", (m) => plain(m.layer.theta)],
    ["dead features", (m) => whole(m.about.dead.length)], ["duplicates", (m) => whole(m.about.duplicates.length)],
    ["mean presence", (m) => percent(m.data.presence.values.reduce((s, v) => s + v, 0) / m.K)],
    ["intersection", (m) => m.layer.intersection], ["difference", (m) => m.layer.difference],
  ];
  return card("In numbers", h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "of the layer"), h("th", { class: "right", scope: "col" }, "A"), h("th", { class: "right", scope: "col" }, "B"))),
    h("tbody", {}, rows.map(([name, of]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "right" }, of(model)), h("td", { class: "right" }, of(other)))))));
}

function likenesses(model) {
  const values = Array.from(model.match.likeness.values), strong = values.filter((v) => v > 0.7).length;
  const counts = [[0.9, 1.01], [0.7, 0.9], [0.5, 0.7], [0.3, 0.5], [-2, 0.3]].map(([low, high]) => ({ low, n: values.filter((v) => v >= low && v < high).length }));
  return card("How alike the features are", barList(counts.map(({ low, n }) => ({ label: [h("span", {}, low < 0 ? "below 0.3" : `from ${low}`)], value: n, shown: whole(n) }))),
    h("p", { class: "soft" }, `${whole(strong)} of ${whole(values.length)} features of A have a partner in B whose measures correlate above 0.7.`));
}

function matches(model, other) {
  const { partner, likeness } = model.match, order = descending(likeness.values).filter((k) => partner.values[k] >= 0).slice(0, PAIRS);
  const row = (k) => {
    const q = partner.values[k], picture = thumb(other.sprites.feature, q, 26, "");
    picture?.setAttribute("aria-hidden", "true");
    return { label: [...featureLink(model, k), h("span", { class: "soft" }, "="), picture, h("span", {}, featureName(other, q))], value: likeness.values[k], shown: plain(likeness.values[k], 2) };
  };
  return wideCard("Features that are most the same", barList(order.map(row), true));
}

// Examples that the two answer differently: first those that one of them has right.
function differing(model, other) {
  if (!model.P || !other.P) return null;
  const found = [];
  for (let i = 0; i < Math.min(model.H, other.H); i++) {
    const [a, b] = [answerOf(model, i), answerOf(other, i)];
    if (className(model, a) !== className(other, b)) found.push({ i, a, b, label: labelOf(model, i) });
  }
  const mine = found.filter(({ a, label }) => a === label).length, theirs = found.filter(({ b, label }) => b === label).length;
  const body = found.slice(0, DIFFERING).map(({ i, a, b, label }) => {
    const mark = (p, of) => h("td", { class: label === null ? "" : p === label ? "good" : "bad" }, className(of, p));
    return h("tr", {}, h("td", {}, pictureOf(model, { kind: "example", index: i }, 32) ? exampleTile(model, i, { side: 32 }) : h("a", { href: `#/why/${i}` }, exampleName(model, i))), mark(a, model), mark(b, other), h("td", {}, label === null ? "" : className(model, label)));
  });
  return wideCard("Answers that differ", h("p", { class: "soft" }, `${whole(found.length)} of ${whole(Math.min(model.H, other.H))}${model.data.labels ? `: A is right in ${whole(mine)} of them, B in ${whole(theirs)}` : ""}.`),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Answers that differ" }, h("table", {}, h("thead", {}, h("tr", {}, ["example", "A", "B", "right"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, body))));
}
