// What all screens ask of the data: names, measures, examples of features, answers.

import { addsUp, descending, explained, likeness, outputsOf, score } from "./arithmetic.js";
import { evaluate, ExpressionError, quoted } from "./expression.js";

// Examples that a set lists.
const LISTED = 60;
// Names that tell what a feature is; columns that do, and the correlation from which they do.
const HINTS = 3, COLUMNS = 2, TELLING = 0.3;

// The model of the page, with a second one beside it if there is one.
export async function openModels(source) {
  const model = await openModel(source, source.about, "");
  if (source.about.beside) {
    model.beside = await openModel({ ...source, ask: null }, source.about.beside, "beside-");
    const [partner, alike] = await Promise.all(["match", "likeness"].map(source.array));
    model.match = { partner, likeness: alike };
  }
  return model;
}

async function openModel(source, about, prefix) {
  const layer = about.layer;
  const names = ["salience", "prototypes", "bias", "presence", "strength", "nearest", "cosines", "labels", "confusion", "thresholds", "answers", "spread", "columns", "correlations"];
  const found = await Promise.all(names.map((name) => source.array(prefix + name)));
  const data = Object.fromEntries(names.map((name, i) => [name, found[i]]));
  const [examples, prototypes, features] = await Promise.all(["examples", "prototypes", "features"].map((name) => source.sprite(prefix + name)));
  // These are by far the largest: they are read when a screen other than the overview asks for them.
  let pending = null;
  const whole = () => (pending ??= Promise.all(["measures", "values"].map(async (name) => { data[name] = await source.array(prefix + name); })));
  const model = {
    source, about, layer, data, whole,
    sprites: { example: examples, prototype: prototypes, feature: features },
    H: source.about.arrays[`${prefix}measures`].shape[0], K: layer.num_features, P: layer.num_prototypes,
    rows: Array.from({ length: layer.num_prototypes }, (_, p) => data.prototypes.row(p)),
    bias: Array.from(data.bias.values),
    off: new Set(),
    addsUp: addsUp(layer),
    renamed: readNames(source, about),
    // Objects that can be asked for, measures of those that were, and names that the page does not hold.
    N: about.offers?.measures ? about.objects : source.about.arrays[`${prefix}measures`].shape[0], asked: new Map(), found: new Map(), hints: new Map(),
  };
  return model;
}

// Names that a reader gave in a page without a server are kept by the browser, for this page alone.
function storageKey(about) {
  return `similitude:${about.title}:${about.layer.num_features}:${about.layer.dim}`;
}

function readNames({ ask }, about) {
  const given = { ...about.features };
  if (ask) return given;
  try {
    const kept = JSON.parse(localStorage.getItem(storageKey(about)) ?? "{}");
    for (const [k, name] of Object.entries(kept)) if (typeof name === "string") given[k] = name;
  } catch { /* a page in a frame may have no storage */ }
  return given;
}

// Names a feature; on the server's model too if there is one.
export async function renameFeature(model, k, name) {
  const wanted = name.trim();
  if (model.source.ask) model.renamed = (await model.source.ask("name", { feature: k, name: wanted })).features;
  else {
    const taken = Object.entries(model.renamed).find(([other, text]) => text === wanted && Number(other) !== k);
    if (wanted && taken) throw new Error(`feature ${taken[0]} is named ${wanted} already`);
    if (wanted) model.renamed[k] = wanted;
    else delete model.renamed[k];
    try { localStorage.setItem(storageKey(model.about), JSON.stringify(model.renamed)); } catch { /* as above */ }
  }
}

export const featureName = (model, k) => model.renamed[k] ?? `feature ${k}`;
export const className = (model, p) => model.about.classes?.[p] ?? `prototype ${p}`;

// What an example is called in expressions and headings.
export const exampleName = (model, i) => model.about.names?.[i] ?? model.found.get(i) ?? `#${i}`;

// An object is {kind: "example" | "prototype", index}; in addresses it is e12 or p3.
export const objectName = (model, { kind, index }) => (kind === "example" ? exampleName(model, index) : className(model, index));
export const addressOf = ({ kind, index }) => `${kind[0]}${index}`;
export function objectOf(model, address) {
  const kind = { e: "example", p: "prototype" }[address?.[0]], index = Number(address?.slice(1) || NaN);
  const most = kind === "example" ? model.N : model.P;
  return kind && Number.isInteger(index) && index >= 0 && index < most ? { kind, index } : null;
}

export function measuresOf(model, { kind, index }) {
  if (kind === "prototype") return model.rows[index];
  return model.asked.get(index) ?? model.data.measures.row(index);
}

// Asks the server for the measures of an object that the page does not hold, or holds rounded.
export async function haveMeasures(model, { kind, index }) {
  if (kind !== "example" || model.asked.has(index) || !model.about.offers?.measures) return;
  model.asked.set(index, Float32Array.from((await model.source.ask("measures", { index })).measures));
}

// Whether an example is on the page; a preview is of all examples.
export const isHeld = (model, i) => i < model.H;

export const labelOf = (model, i) => (model.data.labels ? model.data.labels.values[i] : null);

// The layer's answers for an example, with the features that are off left out.
export function outputsFor(model, i, off = model.off) {
  return outputsOf(model.data.measures.row(i), model.rows, model.bias, model.layer, off);
}

// The prototype answered for an example, by the layer as it is.
export const answerOf = (model, i) => (model.P ? model.data.answers.values[i] : null);

export function explanationOf(model, i, p, off = model.off) {
  return explained(model.data.measures.row(i), model.rows[p], model.bias[p], model.layer, off);
}

export function isWrong(model, i) {
  const label = labelOf(model, i);
  return label !== null && model.P > 0 && label !== answerOf(model, i);
}

// Examples that have a feature, by descending measure.
export function havingFeature(model, k) {
  const column = model.data.measures.column(k);
  return { column, having: descending(column).filter((i) => column[i] > 0) };
}

// Columns of the table that go with a feature, the strongest correlation first.
export function columnsOf(model, k) {
  if (!model.data.columns) return [];
  const found = Array.from(model.data.columns.row(k), (j, n) => ({ name: model.about.table.columns[j], value: model.data.correlations.at(k, n) }));
  return found.filter(({ value }) => value !== 0);
}

// What tells what a feature is, where it has no image: the named objects with most of it; or, without a name of its own,
// the columns that go with it, each with its sign.
export function hintOf(model, k, most) {
  if (model.sprites.feature) return "";
  if (model.about.names) return objectsOf(model, k).slice(0, most).join(", ");
  if (model.renamed[k] !== undefined) return "";
  const telling = columnsOf(model, k).filter(({ value }) => Math.abs(value) >= TELLING);
  return telling.slice(0, COLUMNS).map(({ name, value }) => `${value < 0 ? "−" : "+"}${name}`).join(" ");
}

function objectsOf(model, k) {
  if (!model.data.measures) return [];
  if (!model.hints.has(k)) {
    const best = [];
    for (let i = 0; i < model.H; i++) {
      const value = model.data.measures.at(i, k);
      if (!(value > 0) || (best.length === HINTS && value <= best.at(-1).value)) continue;
      best.splice(best.findLastIndex((one) => one.value >= value) + 1, 0, { i, value });
      best.length = Math.min(best.length, HINTS);
    }
    model.hints.set(k, best.map(({ i }) => exampleName(model, i).replace(/^[Ġ▁]/u, "")));
  }
  return model.hints.get(k);
}

// One of each tenth of those that have a feature, always the same ones.
export function byDecile(having) {
  const n = Math.min(10, having.length);
  return Array.from({ length: n }, (_, d) => having[Math.floor(((d + 0.5) * having.length) / n)]);
}

// Examples that the layer answers with a prototype, the most similar first.
export function nearestExamples(model, p, most) {
  const outputs = Array.from({ length: model.H }, (_, i) => {
    const a = model.data.measures.row(i);
    return outputsOf(a, [model.rows[p]], [model.bias[p]], model.layer)[0];
  });
  return descending(outputs).slice(0, most);
}

// Measures of a shared feature and of a lacked one; the sign says what having it does to the answer.
export function effectOn(model, k, p) {
  const { alpha, beta, theta } = model.layer, b = model.rows[p][k];
  return b > 0 ? { has: true, weight: b, sign: Math.sign(theta * b + beta * b) } : { has: false, weight: 0, sign: -Math.sign(alpha) };
}

export function salienceOf(measures) {
  let sum = 0;
  for (const value of measures) if (value > 0) sum += value;
  return sum;
}

// Three objects to begin with: the first prototypes, or the most salient word and those that share most with it.
export function firstObjects(model) {
  if (model.P > 1) return Array.from({ length: Math.min(3, model.P) }, (_, index) => ({ kind: "prototype", index }));
  if (!model.first) {
    const row = (i) => model.data.measures.row(i), all = Array.from({ length: model.H }, (_, i) => i);
    const words = all.filter((i) => /^[Ġ▁]?\p{L}{4,}$/u.test(exampleName(model, i))), some = words.length > 2 ? words : all;
    const best = some.reduce((a, b) => (salienceOf(row(b)) > salienceOf(row(a)) ? b : a));
    const near = descending(some.map((i) => (i === best ? 2 : likeness(row(i), row(best)))));
    model.first = near.slice(0, 3).map((n) => ({ kind: "example", index: some[n] }));
  }
  return model.first;
}

// Names that expressions know: prototypes, then examples; the first of equal names counts.
export function vocabulary(model) {
  if (!model.vocabulary) {
    const known = new Map();
    for (let p = 0; p < model.P; p++) known.set(className(model, p), { kind: "prototype", index: p });
    for (let i = 0; i < model.N; i++) if (!known.has(exampleName(model, i))) known.set(exampleName(model, i), { kind: "example", index: i });
    model.vocabulary = known;
    model.starts = ["Ġ", "▁"].filter((mark) => [...known.keys()].some((name) => name.startsWith(mark)));
  }
  return model.vocabulary;
}

function findObject(model, name, exact) {
  const known = vocabulary(model), marked = model.starts.map((mark) => mark + name);
  let spelled = exact ? [name, ...marked] : [...marked, name];
  if (name.startsWith(" ")) spelled = [name, ...model.starts.map((mark) => mark + name.slice(1))];
  const hit = spelled.find((text) => known.has(text));
  return hit === undefined ? null : known.get(hit);
}

// The object of a name, with or without the mark of a word's start; the server knows more names than the page holds.
export async function findName(model, name) {
  const object = findObject(model, name, true);
  if (object || !model.about.offers?.search) return object;
  const { index } = await model.source.ask("find", { name });
  if (index === null) return null;
  model.found.set(index, name);
  return { kind: "example", index };
}

export function completions(model, start, most = 8) {
  const wanted = start.toLowerCase(), first = [], later = [];
  for (const name of vocabulary(model).keys()) {
    const place = name.toLowerCase().replace(/^[Ġ▁]/u, "").indexOf(wanted);
    if (place === 0) first.push(name);
    else if (place > 0 && later.length < most) later.push(name);
    if (first.length === most) break;
  }
  return [...first, ...later].slice(0, most).map(quoted);
}

// The set that an expression means: its features, sizes of the named sets, and the examples that score highest in it.
export async function fieldOf(model, text) {
  if (model.about.offers?.sets) {
    const found = await model.source.ask("set", { expression: text });
    if (found.problem) throw new ExpressionError(found.problem, found.position);
    return found;
  }
  const named = new Map();
  const mask = evaluate(text, (name, exact) => {
    const object = findObject(model, name, exact);
    if (!object) {
      const near = completions(model, name.slice(0, 2), 3);
      throw `no object is named '${name}'${near.length ? `; nearest names: ${near.join(", ")}` : ""}`;
    }
    const set = Uint8Array.from(measuresOf(model, object), (value) => Number(value > 0));
    named.set(objectName(model, object), set.reduce((n, has) => n + has, 0));
    return set;
  });
  const members = [];
  mask.forEach((has, k) => { if (has) members.push(k); });
  const scores = Float64Array.from({ length: model.H }, (_, i) => score(model.data.measures.row(i), members));
  const ranking = descending(scores).slice(0, LISTED).map((i) => [exampleName(model, i), scores[i], i]);
  return { members, sizes: [...named], ranking };
}

