// Search: the objects most similar to one of them, in either direction, with what each shares and what it lacks.

import { descending, likeness, sharesOf, similarity, total } from "./arithmetic.js";
import { addressOf, completions, findName, firstObjects, haveMeasures, measuresOf, objectName } from "./model.js";
import { card, featureLink, h, pairAddress, pictureOf, plain, say, whole } from "./parts.js";

// Hits that are listed, and features of each kind that are shown of one.
const HITS = 20, SHOWN = 4;
const REVERSE = "reverse";

export const searchAddress = (query, reverse) => `#/search/${addressOf(query)}${reverse ? `/${REVERSE}` : ""}`;

export async function search(model, query, direction) {
  const reverse = direction === REVERSE;
  await haveMeasures(model, query);
  const a = measuresOf(model, query), found = await hitsOf(model, query, a, reverse), name = objectName(model, query);
  const list = h("ol", { class: "hits", onkeydown: walk }, found.hits.map(({ index, value }) => hit(model, query, a, { kind: "example", index }, value, reverse)));
  return [
    h("h1", {}, `Search: ${name}`),
    h("p", { class: "lead" }, "What is most similar to an object: what each hit shares with it, what it lacks, and what it has besides."),
    chooser(model, query, reverse),
    h("div", { class: "cards" }, card(null, h("div", { class: "row" }, pictureOf(model, query, 84), h("div", { class: "grow" }, h("p", { class: "verdict", id: "query" }, name), h("p", { class: "soft" }, meaning(model, name, reverse), " ", h("span", { id: "certified" }, found.said)))))),
    list,
  ];
}

// What is ranked, in words.
function meaning(model, name, reverse) {
  if (model.layer.objects_only) return "Ranked by the features of both, as a share of the features of either.";
  const { alpha, beta } = model.layer, [lacked, besides] = reverse ? [beta, alpha] : [alpha, beta];
  const costs = Math.abs(lacked - besides) < 1e-9 ? "What a hit lacks costs as much as what it has besides." : `What a hit ${lacked > besides ? "lacks" : "has besides"} costs more (${plain(Math.max(lacked, besides), 3)} to ${plain(Math.min(lacked, besides), 3)}).`;
  return `Ranked by ${reverse ? `S(x, ${name}): how much each is like it` : `S(${name}, x): how much it is like each`}. ${costs}`;
}

// From the server's index, or else of the examples on the page.
async function hitsOf(model, query, a, reverse) {
  if (model.about.offers?.search && query.kind === "example") {
    const { hits, certified } = await model.source.ask("search", { index: query.index, k: HITS, reverse });
    for (const { index, name, features, measures } of hits) {
      const row = new Float32Array(model.K);
      features.forEach((k, i) => { row[k] = measures[i]; });
      model.asked.set(index, row);
      model.found.set(index, name);
    }
    return { hits, said: certified ? `Exact: no other of the ${whole(model.about.objects)} has a larger value.` : "The search was cut short: others may have larger values." };
  }
  const compare = model.layer.objects_only ? likeness : reverse ? (x, y) => similarity(y, x, model.layer) : (x, y) => similarity(x, y, model.layer);
  const values = Float64Array.from({ length: model.H }, (_, i) => compare(a, model.data.measures.row(i)));
  const best = descending(values).filter((i) => query.kind !== "example" || i !== query.index).slice(0, HITS);
  return { hits: best.map((index) => ({ index, value: values[index] })), said: model.H < model.about.objects ? `Among the ${whole(model.H)} of ${whole(model.about.objects)} that this page holds.` : `Among all ${whole(model.H)}.` };
}

// What each feature adds: to the similarity where that is a sum, else how much of it both have or one has.
function partsOf(model, a, b) {
  if (model.addsUp && !model.layer.objects_only) return sharesOf(a, b, model.layer);
  const of = (make) => Float64Array.from(a, (x, k) => make(Math.max(0, x), Math.max(0, b[k])));
  return { common: of((x, y) => Math.min(x, y)), aOnly: of((x, y) => (y > 0 ? 0 : -x)), bOnly: of((x, y) => (x > 0 ? 0 : -y)) };
}

function hit(model, query, a, object, value, reverse) {
  const b = measuresOf(model, object), parts = reverse ? partsOf(model, b, a) : partsOf(model, a, b), name = objectName(model, object);
  const [lacked, besides] = reverse ? [parts.bOnly, parts.aOnly] : [parts.aOnly, parts.bOnly];
  const kinds = [["shares", parts.common, "common"], ["lacks", lacked, "input"], ["has besides", besides, "prototype"]];
  return h("li", { class: "card hit" },
    h("div", { class: "who" }, pictureOf(model, object, 56),
      h("div", {}, h("a", { class: "name", href: pairAddress(query, object), "aria-label": `${name}, compare with the query` }, name), h("div", { class: "number value" }, plain(value, 4)))),
    kinds.map(([said, shares, kind]) => {
      const some = descending(Array.from(shares, Math.abs)).filter((k) => shares[k] !== 0);
      return h("div", { class: "part" }, h("div", { class: "soft" }, h("span", { class: `key ${kind}` }), `${said} ${whole(some.length)}`, model.addsUp && !model.layer.objects_only ? ` (${plain(total(shares), 3)})` : ""),
        h("div", { class: "some" }, some.slice(0, SHOWN).map((k) => h("span", { class: "one", title: plain(shares[k], 4) }, featureLink(model, k, 22)))));
    }),
    h("a", { class: "again", href: searchAddress(object, reverse), "aria-label": `search for it: ${name}` }, "search for it"));
}

function chooser(model, query, reverse) {
  const list = h("datalist", { id: "objects" });
  const fill = () => list.replaceChildren(...completions(model, input.value, 20).map((name) => h("option", { value: name.replace(/^"(.*)"$/u, "$1") })));
  const input = h("input", { type: "text", id: "wanted", class: "grow", list: "objects", value: objectName(model, query), autocomplete: "off", spellcheck: "false", oninput: fill });
  const go = async (event) => {
    event.preventDefault();
    const object = await findName(model, input.value);
    if (object) location.hash = searchAddress(object, reverse);
    else say(`No object is named ${input.value}.`);
  };
  const way = h("select", { id: "way", onchange: () => { location.hash = searchAddress(query, way.value === REVERSE); } },
    h("option", { value: "" }, "S(query, x)"), h("option", { value: REVERSE }, "S(x, query)"));
  way.value = reverse ? REVERSE : "";
  return h("form", { class: "row", role: "search", onsubmit: go }, list, h("span", { class: "field grow" }, h("label", { for: "wanted" }, "Query"), input),
    model.layer.objects_only ? null : h("span", { class: "field" }, h("label", { for: "way" }, "by"), way), h("button", { class: "primary" }, "Search"));
}

// Arrow keys lead from hit to hit.
function walk(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], names = [...event.currentTarget.querySelectorAll("a.name")];
  const at = names.findIndex((link) => link.closest("li").contains(document.activeElement)), next = names[at + step];
  if (!step || !next) return;
  event.preventDefault();
  next.focus();
}

// An example to begin with.
export const firstQuery = (model) => firstObjects(model).find(({ kind }) => kind === "example") ?? { kind: "example", index: 0 };
