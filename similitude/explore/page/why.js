// Why: one example, its answers, and the features that add up to them. Features can be switched off.

import { descending, differenceOf, total } from "./arithmetic.js";
import { valuesOf } from "./columns.js";
import { answerOf, className, exampleName, explanationOf, featureName, isWrong, labelOf, outputsFor } from "./model.js";
import { barHeading, barRow, exampleTile, featureLink, h, pictureOf, plain, say, signed, strip } from "./parts.js";

const TOP = 6, ANSWERS = 6;

// The examples to choose from: all, the wrong ones, those of a class ("7"), or those of it with an answer ("7-2").
export function examplesOf(model, filter) {
  const all = Array.from({ length: model.H }, (_, i) => i);
  if (filter === "wrong") return all.filter((i) => isWrong(model, i));
  if (!/^\d+(-\d+)?$/.test(filter)) return all;
  const [p, answer] = filter.split("-").map(Number), of = all.filter((i) => (labelOf(model, i) ?? answerOf(model, i)) === p);
  return answer === undefined ? of : of.filter((i) => answerOf(model, i) === answer);
}

export function whyIndex(model, filter) {
  const found = examplesOf(model, filter), most = 240, place = h("div", {});
  const choose = h("select", { id: "which", onchange: () => { location.hash = choose.value ? `#/why?${choose.value}` : "#/why"; } },
    h("option", { value: "" }, "all examples"), model.data.labels ? h("option", { value: "wrong" }, "wrong answers") : null,
    model.P <= 100 ? Array.from({ length: model.P }, (_, p) => h("option", { value: p }, className(model, p))) : null,
    /^\d+-\d+$/.test(filter) ? h("option", { value: filter }, filter.split("-").map((p) => className(model, Number(p))).join(" answered as ")) : null);
  choose.value = filter;
  place.append(found.length ? strip(found.slice(0, most).map((i) => exampleTile(model, i, { caption: className(model, answerOf(model, i)) })))
    : h("p", { class: "soft" }, "There are none."));
  return [
    h("h1", {}, "Why"),
    h("p", { class: "lead" }, "Choose an example to see why the layer answers as it does. Below each is its answer; wrong ones have a red border."),
    h("div", { class: "row" }, h("label", { for: "which" }, "Show"), choose, h("span", { class: "soft" }, found.length > most ? `the first ${most} of ${found.length.toLocaleString("en")}` : `${found.length.toLocaleString("en")}`)),
    place,
  ];
}

export function why(model, i, p, over) {
  const outputs = outputsFor(model, i), order = descending(outputs);
  const chosen = p ?? order[0], other = over ?? null;
  const link = (text, href) => h("a", { href }, text);
  return [
    h("p", {}, link("Why", "#/why"), h("span", { class: "soft" }, ` / ${exampleName(model, i)}`)),
    h("h1", {}, other === null ? `Why ${className(model, chosen)}?` : `Why ${className(model, chosen)} and not ${className(model, other)}?`),
    h("div", { class: model.data.values ? "two wider" : "two" },
      h("div", {}, exampleCard(model, i, outputs, order), offCard(model)),
      model.addsUp ? (other === null ? waterfall(model, i, chosen, order) : difference(model, i, chosen, other))
        : h("section", { class: "card" }, h("h2", {}, "Not a sum of features"), h("p", {}, `With ${model.layer.model === "ratio" ? "the ratio model" : "Ψ of sums over a set"} no feature has a share of its own. Switch features off on their pages, and the answers here move.`))),
  ];
}

function exampleCard(model, i, outputs, order) {
  const label = labelOf(model, i), answer = order[0], was = answerOf(model, i);
  const shown = order.slice(0, ANSWERS);
  if (label !== null && !shown.includes(label)) shown.push(label);
  const values = shown.map((q) => outputs[q]), low = Math.min(0, ...values), high = Math.max(0, ...values);
  const verdict = [h("span", {}, className(model, answer))];
  if (label !== null) verdict.push(" ", answer === label ? h("span", { class: "good" }, "right") : h("span", { class: "bad" }, `wrong: it is ${className(model, label)}`));
  const rows = shown.map((q) => {
    const bar = barRow("", 0, outputs[q], { low, high }, "plain", "")[1];
    return h("a", { href: `#/why/${i}/${q}` }, h("span", {}, className(model, q)), bar, h("span", { class: "number" }, plain(outputs[q], 3)));
  });
  const step = (d) => h("a", { href: `#/why/${(i + d + model.H) % model.H}`, id: d > 0 ? "next" : "previous" }, d > 0 ? "next →" : "← previous");
  return h("section", { class: "card" },
    h("div", { class: "row" }, pictureOf(model, { kind: "example", index: i }, 140) ?? h("strong", {}, exampleName(model, i))),
    h("p", { class: "verdict", id: "verdict" }, verdict), label !== null && answer !== label && model.about.offers?.edit && model.about.shape ? h("p", {}, h("a", { href: `#/edit/prototype/${label}` }, `Draw on the prototype of ${className(model, label)}`)) : null,
    was === answer ? null : h("p", { class: "bad" }, `With all features it is ${className(model, was)}.`),
    h("div", { class: "answers", id: "answers" }, rows), h("p", { class: "soft row" }, step(-1), step(1)), valuesOf(model, i));
}

function offCard(model) {
  if (!model.off.size) return null;
  const chips = [...model.off].map((k) => h("span", { class: "chip" }, featureName(model, k), h("button", { class: "small", "aria-label": `switch ${featureName(model, k)} on`, onclick: () => toggle(model, k) }, "on")));
  return h("section", { class: "card" }, h("h2", {}, "Switched off"), h("div", { class: "row" }, chips),
    h("button", { onclick: () => { model.off.clear(); again(); } }, "Switch all on"));
}

function again() {
  window.dispatchEvent(new Event("redraw"));
}

export function toggle(model, k) {
  if (!model.off.delete(k)) model.off.add(k);
  again();
}

export function offButton(model, k) {
  const off = model.off.has(k);
  return h("button", { class: "small", "aria-label": `switch ${featureName(model, k)} ${off ? "on" : "off"}`, title: "leave this feature out, and see the answer move", onclick: () => toggle(model, k) }, off ? "on" : "off");
}

// Bars one after the other, each from where the last one ended, down to the number that the layer answers.
function waterfall(model, i, p, order) {
  const e = explanationOf(model, i, p), kinds = [["common to both", e.common, "common"], ["of the input only", e.aOnly, "input"], ["of the prototype only", e.bOnly, "prototype"]];
  const steps = [];
  let at = 0;
  for (const [name, shares, kind] of kinds) {
    const some = descending(shares.map(Math.abs)).filter((k) => shares[k] !== 0), rest = some.slice(TOP);
    steps.push({ heading: `${some.length} ${name}`, value: total(shares), kind });
    for (const k of some.slice(0, TOP)) steps.push({ k, from: at, to: (at += shares[k]), kind, value: shares[k] });
    if (rest.length) {
      const sum = rest.reduce((s, k) => s + shares[k], 0);
      steps.push({ rest: rest.length, from: at, to: (at += sum), kind, value: sum });
    }
  }
  if (e.bias) steps.push({ heading: "bias", value: e.bias }, { text: "constant", from: at, to: at + e.bias, kind: "plain", value: e.bias });
  const ends = steps.filter((s) => s.from !== undefined).flatMap((s) => [s.from, s.to]), scale = { low: Math.min(0, ...ends), high: Math.max(0, ...ends) };
  const rows = steps.flatMap((s) => {
    if (s.heading) return [barHeading(s.heading, signed(s.value), s.kind)];
    const label = s.k === undefined ? [h("span", { class: "soft" }, s.text ?? `${s.rest} more`)] : featureLink(model, s.k);
    return barRow(label, s.from, s.to, scale, s.kind, [signed(s.value), " ", s.k === undefined ? null : offButton(model, s.k)].filter(Boolean));
  });
  const runner = order.find((q) => q !== p);
  const heading = h("div", { class: "row" }, h("span", { class: "grow verdict" }, "Similarity to ", h("a", { href: `#/prototype/${p}` }, className(model, p)), ` is `, h("span", { id: "similarity", class: "number" }, signed(e.similarity))),
    runner === undefined ? null : h("a", { href: `#/why/${i}/${p}/${runner}` }, `Why not ${className(model, runner)}?`));
  return h("section", { class: "card" }, heading, h("p", { class: "soft" }, "Each bar begins where the last one ended; the last one ends at the similarity."),
    h("div", { class: "bars" }, rows, barHeading("all together", signed(e.similarity))));
}

// Which features speak for one class over another.
function difference(model, i, p, q) {
  const d = differenceOf(explanationOf(model, i, p), explanationOf(model, i, q)), most = 14;
  const order = descending(d.shares.map(Math.abs)).filter((k) => d.shares[k] !== 0), rest = order.slice(most);
  const rest_ = rest.reduce((s, k) => s + d.shares[k], 0), values = [...order.slice(0, most).map((k) => d.shares[k]), rest_];
  const scale = { low: Math.min(0, ...values), high: Math.max(0, ...values) };
  const rows = order.slice(0, most).flatMap((k) => barRow(featureLink(model, k), 0, d.shares[k], scale, d.shares[k] > 0 ? "common" : "input", [signed(d.shares[k]), " ", offButton(model, k)]));
  if (rest.length) rows.push(...barRow([h("span", { class: "soft" }, `${rest.length} more`)], 0, rest_, scale, rest_ > 0 ? "common" : "input", signed(rest_)));
  if (d.bias) rows.push(...barRow([h("span", { class: "soft" }, "bias")], 0, d.bias, { low: Math.min(scale.low, d.bias), high: Math.max(scale.high, d.bias) }, "plain", signed(d.bias)));
  const choose = h("select", { id: "other", onchange: () => { location.hash = `#/why/${i}/${p}/${choose.value}`; } },
    Array.from({ length: model.P }, (_, r) => (r === p ? null : h("option", { value: r }, className(model, r)))));
  choose.value = String(q);
  return h("section", { class: "card" },
    h("div", { class: "row" }, h("span", { class: "grow verdict" }, `${className(model, p)} over ${className(model, q)}: `, h("span", { id: "difference", class: "number" }, signed(d.difference))),
      h("label", { for: "other" }, "over"), choose, h("a", { href: `#/why/${i}/${q}/${p}` }, "the other way round")),
    h("p", { class: "soft" }, `To the right: for ${className(model, p)}. To the left: for ${className(model, q)}. All together are the difference of the two answers.`),
    h("div", { class: "bars" }, rows));
}

export function whyKeys(event, i, model) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || event.target.closest("input, select, textarea")) return;
  location.hash = `#/why/${(i + step + model.H) % model.H}`;
  say(`Example ${exampleName(model, (i + step + model.H) % model.H)}`);
}
