// Overview: the layer in words and numbers, how its features are used, and how often it is right.

import { descending } from "./arithmetic.js";
import { className, salienceOf } from "./model.js";
import { card, exampleTile, featureLink, figures, h, histogram, percent, plain, strip, svg, whole, wideCard } from "./parts.js";

const SHOWN = 12;

export function overview(model) {
  const { layer, about } = model, presence = Array.from(model.data.presence.values);
  const sizes = [["features", whole(model.K)], ["width", whole(layer.dim)], ["parameters", whole(layer.parameters)]];
  const constants = [["α", plain(layer.alpha)], ["β", plain(layer.beta)], ["θ", plain(layer.theta)]];
  if (model.P) sizes.unshift(["prototypes", whole(model.P)]);
  return [
    h("h1", {}, about.title),
    h("p", { class: "lead" }, inWords(model)),
    h("div", { class: "cards" },
      card("The layer", figures(sizes)),
      layer.objects_only ? null : card("What weighs how much", figures(layer.model === "ratio" ? constants.slice(0, 2) : constants), weighing(model), traces(about.traces)),
      about.accuracy === undefined ? null : card("Answers", figures([["accuracy", percent(about.accuracy)], ["examples", whole(about.objects)]]), wrongOnes(model)),
      card("Presence", histogram(presence, { bins: 25, low: 0, high: 1, label: `How many features belong to which share of the examples: from ${percent(Math.min(...presence))} to ${percent(Math.max(...presence))}.` }),
        h("p", { class: "soft" }, "How many features belong to which share of all examples, from none to all.")),
      card("Features to look at", notable(model)),
      legibility(model),
      salient(model),
      confusions(model)),
  ];
}

function inWords(model) {
  const { layer, about } = model;
  if (layer.objects_only) return `${whole(about.objects)} named objects, each a set of some of ${whole(model.K)} features.${about.note ? ` ${about.note[0].toUpperCase()}${about.note.slice(1)}.` : ""}`;
  if (!model.P) return `${whole(about.objects)} documents, compared by what they share of ${whole(model.K)} features (${layer.intersection}) and by what only one of them has.`;
  const cut = layer.thresholds ? "when its measure is above the feature's threshold" : "when its measure is above 0";
  const lacks = layer.difference === "ignorematch" ? "features that only one of them has" : "features that one of them has more of";
  const level = layer.level === "set" ? ", of the sums over all features" : "";
  const how = layer.model === "ratio" ? "the share of what is common in all there is" : "what is common less what is not";
  return `An input is compared with ${whole(model.P)} prototypes by the features they share (${layer.intersection}${level}) and by ${lacks}: ${how}. An object has a feature ${cut}.${layer.normalize ? " Objects are scaled to length 1 first." : ""}`;
}

function weighing({ layer, P }) {
  const [first, second] = P ? ["the input", "the prototype"] : ["the query", "a document"];
  const more = Math.abs(layer.alpha - layer.beta) < 1e-6 ? `What only ${first} has counts as much as what only ${second} has.`
    : layer.alpha > layer.beta ? `What only ${first} has counts for more than what only ${second} has.` : `What only ${second} has counts for more than what only ${first} has.`;
  return h("p", { class: "soft" }, more);
}

// α, β and θ over the training, on one scale.
function traces(found) {
  if (!found || found.step.length < 2) return null;
  const kinds = [["alpha", "α", "input"], ["beta", "β", "prototype"], ["theta", "θ", "common"]];
  const values = kinds.flatMap(([name]) => found[name]), [low, high] = [Math.min(0, ...values), Math.max(...values)];
  const W = 420, H = 120, steps = found.step, first = steps[0], last = steps.at(-1);
  const x = (step) => (W * (step - first)) / (last - first || 1), y = (value) => H - (H * (value - low)) / (high - low || 1);
  const lines = kinds.map(([name, letter, kind]) => svg("polyline", { class: `trace ${kind}`, points: steps.map((step, i) => `${x(step)},${y(found[name][i])}`).join(" ") }, svg("title", {}, letter)));
  const told = kinds.map(([name, letter]) => `${letter} from ${plain(found[name][0])} to ${plain(found[name].at(-1))}`).join(", ");
  return [
    svg("svg", { viewBox: `-2 -6 ${W + 4} ${H + 26}`, role: "img", "aria-label": `Over the training: ${told}.` }, svg("line", { class: "rule", x1: 0, x2: W, y1: y(0), y2: y(0) }), lines,
      svg("text", { x: 0, y: H + 16 }, `step ${whole(first)}`), svg("text", { x: W, y: H + 16, "text-anchor": "end" }, whole(last))),
    h("p", { class: "soft" }, kinds.flatMap(([name, letter, kind]) => [h("span", { class: "legend" }, h("span", { class: `key ${kind}` }), `${letter} ${plain(found[name][0], 3)} → ${plain(found[name].at(-1), 3)}`), " "])),
  ];
}

// How well single features match attributes that people can name, beside what could refute it.
function legibility(model) {
  const found = model.about.legibility;
  if (!found) return null;
  const head = (names) => h("thead", {}, h("tr", {}, names.map((name, i) => h("th", { scope: "col", class: i ? "right" : null }, name))));
  const row = (name, cells) => h("tr", {}, h("th", { scope: "row" }, name), cells.map((cell) => h("td", { class: "right" }, cell)));
  const means = found.means.map(([name, mcc, recovered, auc]) => row(name, [plain(mcc, 3), percent(recovered), plain(auc, 3)]));
  const best = found.best.map(([name, k, mcc]) => row(name, [featureLink(model, k).slice(1), plain(mcc, 3)]));
  return wideCard("Legibility",
    h("p", { class: "soft" }, `How well single features match ${whole(found.attributes)} attributes: chosen on ${whole(found.objects[0])} examples, scored on ${whole(found.objects[1])} others. MCC is a correlation; recovered is the share of attributes with an MCC of 0.5 or more.`),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Legibility beside baselines" }, h("table", { id: "legibility" }, head(["features of", "MCC", "recovered", "AUC"]), h("tbody", {}, means))),
    h("h2", {}, "Attributes that match best"),
    h("table", { id: "attributes" }, head(["attribute", "feature", "MCC"]), h("tbody", {}, best)));
}

function wrongOnes(model) {
  if (!model.P || !model.data.labels) return null;
  return h("p", {}, h("a", { href: "#/why?wrong" }, "Look at the wrong ones"));
}

function notable(model) {
  const { about } = model, rows = [["dead", about.dead], ["all have them", about.ever_present], ["duplicates", about.duplicates.map(([k]) => k)]];
  return h("table", {}, h("tbody", {}, rows.map(([name, found]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "right" }, whole(found.length)),
    h("td", {}, found.slice(0, 3).flatMap((k) => [...featureLink(model, k).slice(1), " "]), found.length > 3 ? "…" : "")))));
}

// The examples with most and with least of all features, Eq. 2.
function salient(model) {
  const salience = model.data.salience?.values ?? Float64Array.from({ length: model.H }, (_, i) => salienceOf(model.data.measures.row(i)));
  const order = descending(salience), tiles = (found) => strip(found.map((i) => exampleTile(model, i, { caption: plain(salience[i], 2) })));
  return wideCard("Most and least salient examples", h("p", { class: "soft" }, "Salience is the sum of the measures of all features that an example has."),
    tiles(order.slice(0, SHOWN)), h("p", {}), tiles(order.slice(-SHOWN).reverse()));
}

function confusions(model) {
  const table = model.data.confusion;
  if (!table || model.P > 20) return null;
  const most = Math.max(1, ...Array.from(table.values).filter((_, i) => Math.floor(i / model.P) !== i % model.P));
  const rows = Array.from({ length: model.P }, (_, label) => h("tr", {}, h("th", { scope: "row" }, className(model, label)),
    Array.from(table.row(label), (count, answer) => {
      const address = `#/why?${label}-${answer}`, told = `${whole(count)} of ${className(model, label)} answered as ${className(model, answer)}`;
      const cell = h("td", {}, count ? h("a", { href: address, "aria-label": told }, whole(count)) : "·");
      if (count && label !== answer) cell.style.background = `color-mix(in srgb, var(--bad) ${Math.round((30 * count) / most)}%, transparent)`;
      return cell;
    })));
  return wideCard("What was answered for what", h("p", { class: "soft" }, "Rows are right classes, columns are answers. A number leads to its examples."), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of answers" }, h("table", { class: "heat" },
    h("thead", {}, h("tr", {}, h("th", {}, "right ╲ answer"), Array.from({ length: model.P }, (_, p) => h("th", { scope: "col", class: "right" }, className(model, p))))), h("tbody", {}, rows))));
}
