// Two objects: what they share and what each has alone, and why S(a, b) is not S(b, a).

import { descending, likeness, score, setsOf, similarity } from "./arithmetic.js";
import { completions, haveMeasures, measuresOf, objectName, vocabulary } from "./model.js";
import { barList, card, exampleTile, featureLink, h, pairAddress, pictureOf, plain, say, signed, strip, svg, whole } from "./parts.js";

const TOP = 8, EXAMPLES = 9;

export async function pair(model, a, b) {
  await Promise.all([haveMeasures(model, a), haveMeasures(model, b)]);
  const x = measuresOf(model, a), y = measuresOf(model, b), [A, B] = [objectName(model, a), objectName(model, b)];
  const regions = [[], [], []];
  x.forEach((value, k) => {
    if (value > 0 && y[k] > 0) regions[1].push(k);
    else if (value > 0) regions[0].push(k);
    else if (y[k] > 0) regions[2].push(k);
  });
  const [aOnly, common, bOnly] = regions;
  return [
    h("h1", {}, `${A} and ${B}`),
    h("p", { class: "lead" }, "What both have, what only one of them has, and the examples that show it best."),
    chooser(model, a, b),
    h("div", { class: "cards" },
      card("As sets", venn(A, B, regions), h("p", { class: "soft" }, `They share ${plain(100 * likeness(x, y), 0)} % of the features that either has.`)),
      model.layer.objects_only ? weighed(A, B, regions) : similarities(model, a, b, x, y)),
    h("div", { class: "cards" },
      region(model, `only ${A}`, aOnly, x, "input"), region(model, "both", common, x.map((value, k) => Math.min(value, y[k])), "common"), region(model, `only ${B}`, bOnly, y, "prototype")),
  ];
}

function chooser(model, a, b) {
  const list = h("datalist", { id: "names" });
  const fill = (text) => list.replaceChildren(...completions(model, text, 20).map((name) => h("option", { value: name.replace(/^"(.*)"$/u, "$1") })));
  const input = (id, object) => h("input", { type: "text", id, class: "grow", list: "names", value: objectName(model, object), autocomplete: "off", oninput: (e) => fill(e.target.value) });
  const first = input("first", a), second = input("second", b);
  const go = (event) => {
    event.preventDefault();
    const known = vocabulary(model), found = [first, second].map((field) => known.get(field.value) ?? known.get(`Ġ${field.value}`));
    const missing = found.indexOf(undefined);
    if (missing >= 0) say(`No object is named ${[first, second][missing].value}.`);
    else location.hash = pairAddress(...found);
  };
  return h("form", { class: "row", onsubmit: go }, list, h("span", { class: "field grow" }, h("label", { for: "first" }, "A"), first), h("span", { class: "field grow" }, h("label", { for: "second" }, "B"), second), h("button", {}, "Compare"),
    h("a", { href: pairAddress(b, a) }, "swap"), pictureOf(model, a, 64), pictureOf(model, b, 64));
}

// Circles whose overlap grows with the share of features in common.
function venn(A, B, [a, both, b]) {
  const union = a.length + both.length + b.length, apart = 130 - 75 * (union ? both.length / union : 0), r = 82;
  const [left, right] = [210 - apart / 2, 210 + apart / 2];
  const circle = (cx, colour) => svg("circle", { cx, cy: 105, r, fill: colour, "fill-opacity": 0.22, stroke: colour, "stroke-width": 2 });
  const number = (x, n) => svg("text", { x, y: 112, "text-anchor": "middle", class: "big" }, whole(n));
  const short = (name) => (name.length > 18 ? `${name.slice(0, 17)}…` : name);
  return svg("svg", { viewBox: "0 0 420 212", role: "img", "aria-label": `${a.length} features of ${A} only, ${both.length} of both, ${b.length} of ${B} only.` },
    circle(left, "var(--input)"), circle(right, "var(--prototype)"), number(left - r / 1.8, a.length), number(210, both.length), number(right + r / 1.8, b.length),
    svg("text", { x: left - 20, y: 14, "text-anchor": "middle" }, short(A)), svg("text", { x: right + 20, y: 14, "text-anchor": "middle" }, short(B)));
}

// Words come without a layer: the ratio model on numbers of features, with weights that the reader moves.
function weighed(A, B, [aOnly, common, bOnly]) {
  const there = h("strong", { id: "forth" }), back = h("strong", { id: "back" });
  const slider = (id, value) => h("input", { type: "range", id, min: 0, max: 2, step: 0.05, value, class: "grow", oninput: show });
  const alpha = slider("alpha", 1), beta = slider("beta", 1), shown = h("p", { class: "soft" });
  function show() {
    const [a, b] = [Number(alpha.value), Number(beta.value)], n = common.length;
    const ratio = (first, second) => (n ? n / (n + a * first.length + b * second.length) : 0);
    there.textContent = plain(ratio(aOnly, bOnly));
    back.textContent = plain(ratio(bOnly, aOnly));
    shown.textContent = `α ${plain(a, 2)} weighs what the first has alone, β ${plain(b, 2)} what the second has alone. Where they differ, so do the two ways round.`;
  }
  show();
  return card("Both ways round", h("table", {}, h("tbody", {}, [[`${A} is like ${B}`, there], [`${B} is like ${A}`, back]].map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "right" }, value))))),
    h("p", {}), h("div", { class: "row" }, [["alpha", "α", alpha], ["beta", "β", beta]].map(([id, letter, input]) => h("span", { class: "field grow" }, h("label", { for: id }, letter), input))), shown);
}

// Both ways round, and the parts of which each is made.
function similarities(model, a, b, x, y) {
  const { layer } = model, [A, B] = [objectName(model, a), objectName(model, b)];
  const forth = similarity(x, y, layer), back = similarity(y, x, layer), sets = setsOf(x, y, layer);
  const parts = layer.model === "contrast" ? [
    [`θ · f(A ∩ B)`, layer.theta * sets.common, layer.theta * sets.common],
    [`−α · what the first has alone`, -layer.alpha * sets.aOnly, -layer.alpha * sets.bOnly],
    [`−β · what the second has alone`, -layer.beta * sets.bOnly, -layer.beta * sets.aOnly],
  ] : [[`f(A ∩ B)`, sets.common, sets.common], [`α · what the first has alone`, layer.alpha * sets.aOnly, layer.alpha * sets.bOnly], [`β · what the second has alone`, layer.beta * sets.bOnly, layer.beta * sets.aOnly]];
  const rows = parts.map(([name, there, return_]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "right" }, signed(there)), h("td", { class: "right" }, signed(return_))));
  const last = h("tr", {}, h("th", { scope: "row" }, "similarity"), h("td", { class: "right" }, h("strong", { id: "forth" }, signed(forth))), h("td", { class: "right" }, h("strong", { id: "back" }, signed(back))));
  return card("Both ways round", h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "part"), h("th", { class: "right" }, "S(A, B)"), h("th", { class: "right" }, "S(B, A)"))), h("tbody", {}, rows, last)),
    h("p", { class: "soft" }, reason(layer, sets, A, B, forth, back)));
}

function reason(layer, sets, A, B, forth, back) {
  if (Math.abs(forth - back) < 1e-9) return layer.alpha === layer.beta ? "Both are the same, since α is β." : "Both are the same, since each has as much alone as the other.";
  const more = sets.aOnly > sets.bOnly ? A : B, costs = layer.alpha > layer.beta ? "first" : "second";
  const [most, least] = [sets.aOnly, sets.bOnly].sort((x, y) => y - x);
  return `What ${more} has alone is more in all (${plain(most, 2)} to ${plain(least, 2)}), and what the ${costs} one has alone costs more (α ${plain(layer.alpha, 3)}, β ${plain(layer.beta, 3)}): so ${forth > back ? `${A} is more like ${B} than ${B} is like ${A}` : `${B} is more like ${A} than ${A} is like ${B}`}.`;
}

function region(model, name, members, measures, kind) {
  const strongest = members.slice().sort((i, j) => measures[j] - measures[i] || i - j).slice(0, TOP);
  const scores = Float64Array.from({ length: members.length ? model.H : 0 }, (_, i) => score(model.data.measures.row(i), members));
  const best = descending(scores).slice(0, EXAMPLES);
  return card(`${whole(members.length)} of ${name}`,
    strongest.length ? barList(strongest.map((k) => ({ label: featureLink(model, k), value: measures[k], kind, shown: plain(measures[k], 3) }))) : h("p", { class: "soft" }, "no feature"),
    best.length ? h("h2", {}, "Best shown by") : null, best.length ? strip(best.map((i) => exampleTile(model, i, { side: 44 }))) : null);
}
