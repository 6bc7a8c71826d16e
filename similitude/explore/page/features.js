// Features: a grid of all of them, and a page for each.

import { descending } from "./arithmetic.js";
import { columnsCard } from "./columns.js";
import { byDecile, className, effectOn, featureName, havingFeature, hintOf, renameFeature } from "./model.js";
import { barList, card, download, drawLink, exampleTile, featureLink, figures, h, histogram, percent, plain, prototypeLink, say, signed, strip, thumb, virtualGrid, wideCard } from "./parts.js";

const ORDERS = {
  number: (model) => Array.from({ length: model.K }, (_, k) => k),
  "presence, highest first": (model) => descending(model.data.presence.values),
  "presence, lowest first": (model) => descending(model.data.presence.values.map((share) => -share)),
  "strength, highest first": (model) => descending(model.data.strength.values),
};
const TOP = 24;

export function features(model) {
  const place = h("div", {}), count = h("p", { class: "soft", role: "status" });
  const order = h("select", { id: "order", onchange: show }, Object.keys(ORDERS).map((name) => h("option", {}, name)));
  const search = h("input", { type: "search", id: "search", class: "grow", placeholder: "a name, or a number", oninput: show, onkeydown: open });
  let first = null;
  // Enter opens the first that is found.
  function open(event) {
    if (event.key === "Enter" && first !== null) location.hash = `#/feature/${first}`;
  }
  function show() {
    const wanted = search.value.trim().toLowerCase();
    const found = ORDERS[order.value](model).filter((k) => !wanted || String(k) === wanted || featureName(model, k).toLowerCase().includes(wanted));
    // A number is that of a feature before it is a part of a name.
    found.sort((i, j) => (String(j) === wanted) - (String(i) === wanted));
    first = found[0] ?? null;
    count.textContent = found.length === 1 ? "1 feature" : `${found.length.toLocaleString("en")} features`;
    place.replaceChildren(virtualGrid(found, (k) => featureCard(model, k)));
  }
  show();
  return [
    h("h1", {}, "Features"),
    h("p", { class: "lead" }, "What the layer sees in its inputs. Open one to look at the examples that have it, and to give it a name."),
    h("div", { class: "row" }, h("span", { class: "field grow" }, h("label", { for: "search" }, "Find"), search), h("span", { class: "field" }, h("label", { for: "order" }, "Order by"), order), namesButton(model)),
    count, place,
  ];
}

// The names that features have, as a file that Python reads.
function namesButton(model) {
  if (!Object.keys(model.renamed).length) return null;
  return h("button", { id: "names", onclick: () => {
    download(new Blob([`${JSON.stringify(model.renamed, null, 2)}\n`], { type: "application/json" }), "names.json");
    say("The names are saved as names.json, among your downloads.");
  } }, "Save the names");
}

function featureCard(model, k) {
  const picture = thumb(model.sprites.feature, k, 56, "");
  picture?.setAttribute("aria-hidden", "true");
  const second = picture ? "" : hintOf(model, k, 3);
  return h("a", { class: "feature", href: `#/feature/${k}` }, picture,
    h("div", {}, h("div", { class: "name" }, featureName(model, k)), second ? h("div", { class: "soft" }, second) : null,
      h("div", { class: "soft" }, `${percent(model.data.presence.values[k])} have it`)));
}

export function feature(model, k) {
  const { column, having } = havingFeature(model, k), share = model.data.presence.values[k];
  const examples = having.length ? strip(having.slice(0, TOP).map((i) => exampleTile(model, i, { caption: plain(column[i], 2) })))
    : h("p", { class: "soft" }, "No example on this page has it.");
  return [
    h("p", {}, h("a", { href: "#/features" }, "Features"), h("span", { class: "soft" }, ` / ${k}`)),
    heading(model, k),
    h("div", { class: "cards" },
      card("In numbers", h("div", { class: "row" }, thumb(model.sprites.feature, k, 120, `feature ${k} as an image`),
        figures([["presence", percent(share)], ["mean measure", plain(model.data.strength.values[k], 3)], ...(model.layer.thresholds ? [["threshold", plain(model.data.thresholds.values[k], 3)]] : [])])),
        drawLink(model, "feature", k),
        model.sprites.feature && model.about.signed ? h("p", { class: "soft" }, "Purple counts for the feature, orange against it.") : null),
      card("Measures", histogram(column, { line: 0, label: `Measures of ${column.length} examples, from ${plain(Math.min(...column), 2)} to ${plain(Math.max(...column), 2)}; ${having.length} are above 0.` }),
        h("p", { class: "soft" }, "To the right of the line an example has the feature.")),
      nearest(model, k),
      columnsCard(model, k),
      wideCard("Examples that have it most", examples),
      having.length > TOP ? wideCard("One of each tenth of those that have it", strip(byDecile(having).map((i) => exampleTile(model, i, { caption: plain(column[i], 2) })))) : null,
      model.P ? wideCard("What it says about each prototype", effects(model, k)) : null),
  ];
}

function heading(model, k) {
  const input = h("input", { type: "text", id: "name", maxlength: 80, value: model.renamed[k] ?? "", placeholder: "give it a name", "aria-label": `Name of feature ${k}`, autocomplete: "off" });
  const title = h("h1", {}, featureName(model, k));
  const save = async (event) => {
    event.preventDefault();
    try {
      await renameFeature(model, k, input.value);
      title.textContent = featureName(model, k);
      say(input.value.trim() ? `Feature ${k} is named ${input.value.trim()}.` : `Feature ${k} has no name.`);
    } catch (error) { say(error.message); }
  };
  return h("div", {}, title, h("form", { class: "row", onsubmit: save }, input, h("button", {}, "Save the name"),
    h("span", { class: "soft" }, model.source.ask ? model.about.names_kept : "kept in this browser")));
}

function nearest(model, k) {
  if (!model.data.nearest?.columns) return null;
  const near = Array.from(model.data.nearest.row(k)), cosines = model.data.cosines.row(k);
  return card("Features most like it", barList(near.map((other, i) => ({ label: featureLink(model, other), value: cosines[i], shown: plain(cosines[i], 2) }))),
    h("p", { class: "soft" }, "By the cosine of their directions; at 1 they are the same."));
}

function effects(model, k) {
  const effect = Array.from({ length: model.P }, (_, p) => ({ p, ...effectOn(model, k, p) }));
  const having = effect.filter((e) => e.has).sort((a, b) => b.weight - a.weight), lacking = effect.filter((e) => !e.has);
  const names = lacking.slice(0, 30).map((e) => className(model, e.p)).join(", ") + (lacking.length > 30 ? ` and ${lacking.length - 30} more` : "");
  const cost = model.layer.alpha > 0 ? "Having it counts against" : "Having it does not count against";
  return [
    having.length ? barList(having.slice(0, 30).map((e) => ({ label: prototypeLink(model, e.p), value: e.weight, kind: "common", shown: signed(e.weight, 3) }))) : h("p", { class: "soft" }, "No prototype has it."),
    lacking.length ? h("p", { class: "soft" }, `${cost} those that lack it: ${names}.`) : h("p", { class: "soft" }, "All prototypes have it."),
  ].flat();
}
