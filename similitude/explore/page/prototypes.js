// Prototypes: what each class is to the layer.

import { descending, likeness } from "./arithmetic.js";
import { className, nearestExamples, salienceOf } from "./model.js";
import { barList, card, drawLink, exampleTile, featureLink, figures, h, pairAddress, plain, prototypeLink, strip, thumb, virtualGrid, whole, wideCard } from "./parts.js";

const TOP = 24;

export function prototypes(model) {
  const all = Array.from({ length: model.P }, (_, p) => p);
  const make = (p) => {
    const picture = thumb(model.sprites.prototype, p, 56, ""), row = model.rows[p];
    picture?.setAttribute("aria-hidden", "true");
    return h("a", { class: "feature", href: `#/prototype/${p}` }, picture,
      h("div", {}, h("div", { class: "name" }, className(model, p)), h("div", { class: "soft" }, `${whole(row.reduce((n, v) => n + (v > 0), 0))} features`)));
  };
  return [h("h1", {}, "Prototypes"), h("p", { class: "lead" }, "What inputs are compared with: one learned object for each answer."), virtualGrid(all, make)];
}

export function prototype(model, p) {
  const row = model.rows[p], order = descending(row).filter((k) => row[k] > 0);
  const others = Array.from({ length: model.P }, (_, q) => q).filter((q) => q !== p);
  const likes = others.map((q) => ({ q, value: likeness(row, model.rows[q]) })).sort((a, b) => b.value - a.value).slice(0, 8);
  return [
    h("p", {}, h("a", { href: "#/prototypes" }, "Prototypes"), h("span", { class: "soft" }, ` / ${p}`)),
    h("h1", {}, className(model, p)),
    h("div", { class: "cards" },
      card("In numbers", h("div", { class: "row" }, thumb(model.sprites.prototype, p, 120, `prototype ${className(model, p)} as an image`),
        figures([["features", whole(order.length)], ["salience", plain(salienceOf(row), 2)], ...(model.bias[p] ? [["bias", plain(model.bias[p], 3)]] : [])])),
        model.about.rebuilt ? h("p", { class: "soft" }, "The image is made of the features that it has, each by its measure.") : null, drawLink(model, "prototype", p)),
      card("Its strongest features", barList(order.slice(0, 12).map((k) => ({ label: featureLink(model, k), value: row[k], kind: "common", shown: plain(row[k], 3) })))),
      likes.length ? card("Most features in common with", barList(likes.map(({ q, value }) => ({
        label: [...prototypeLink(model, q), h("a", { href: pairAddress({ kind: "prototype", index: p }, { kind: "prototype", index: q }), class: "soft", "aria-label": `compare ${className(model, p)} with ${className(model, q)}` }, "compare")],
        value, shown: plain(value, 2) }))), h("p", { class: "soft" }, "Features of both, as a share of the features of either.")) : null,
      confused(model, p),
      wideCard("Examples most similar to it", strip(nearestExamples(model, p, TOP).map((i) => exampleTile(model, i))))),
  ];
}

// What it was taken for, and what was taken for it.
function confused(model, p) {
  if (!model.data.confusion) return null;
  const found = Array.from({ length: model.P }, (_, q) => ({ q, taken: model.data.confusion.at(p, q), given: model.data.confusion.at(q, p) }))
    .filter(({ q, taken, given }) => q !== p && taken + given > 0).sort((a, b) => b.taken + b.given - a.taken - a.given).slice(0, 8);
  if (!found.length) return card("Most confused with", h("p", { class: "soft" }, "It was never confused."));
  return card("Most confused with", h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "class"), h("th", { class: "right" }, "answered instead"), h("th", { class: "right" }, "taken for it"))),
    h("tbody", {}, found.map(({ q, taken, given }) => h("tr", {}, h("td", {}, h("a", { href: `#/prototype/${q}` }, className(model, q))), h("td", { class: "right" }, whole(taken)), h("td", { class: "right" }, whole(given)))))));
}
