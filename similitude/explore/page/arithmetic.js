// The equations of Tversky similarity on measures, as ops/reference.py has them. All functions are pure.
//
// a and b are arrays of K measures: an object has feature k when its measure is above 0, strictly.

// Psi of two measures that are both above 0, Eq. 3.
export function pooled(a, b, intersection) {
  switch (intersection) {
    case "product": return a * b;
    case "mean": return (a + b) / 2;
    case "min": return Math.min(a, b);
    case "max": return Math.max(a, b);
    case "gmean": return Math.sqrt(a) * Math.sqrt(b);
    case "softmin": return Math.min(a, b) - Math.log1p(Math.exp(-Math.abs(a - b)));
  }
  throw new Error(`there is no intersection named ${intersection}`);
}

// What each feature adds to S(a, b), split in three: common, a alone, b alone. A feature that is off adds nothing.
// Only the contrast model at the level of features is such a sum.
export function sharesOf(a, b, layer, off = new Set()) {
  const K = a.length, common = new Float64Array(K), aOnly = new Float64Array(K), bOnly = new Float64Array(K);
  const excess = layer.difference === "subtractmatch";
  for (let k = 0; k < K; k++) {
    const x = a[k], y = b[k];
    if (off.has(k)) continue;
    if (x > 0 && y > 0) {
      common[k] = layer.theta * pooled(x, y, layer.intersection);
      if (excess && x > y) aOnly[k] = -layer.alpha * (x - y);
      if (excess && y > x) bOnly[k] = -layer.beta * (y - x);
    } else if (x > 0) aOnly[k] = -layer.alpha * x;
    else if (y > 0) bOnly[k] = -layer.beta * y;
  }
  return { common, aOnly, bOnly };
}

// f(A ∩ B), f(A − B) and f(B − A), Eq. 3 to 5, before alpha, beta and theta.
export function setsOf(a, b, layer, off = new Set()) {
  let common = 0, aOnly = 0, bOnly = 0, u = 0, v = 0, aExcess = 0, bExcess = 0;
  for (let k = 0; k < a.length; k++) {
    const x = a[k], y = b[k];
    if (off.has(k)) continue;
    if (x > 0 && y > 0) {
      common += pooled(x, y, layer.intersection);
      u += x;
      v += y;
      if (x > y) aExcess += x - y;
      else bExcess += y - x;
    } else if (x > 0) aOnly += x;
    else if (y > 0) bOnly += y;
  }
  // At the level of sets Psi and the excess are of the two sums; of product and mean Psi is inside the sum anyway.
  const bySet = layer.level === "set";
  if (bySet && !["product", "mean"].includes(layer.intersection)) {
    common = pooled(u, v, layer.intersection);
  }
  if (layer.difference === "subtractmatch") {
    aOnly += bySet ? u - Math.min(u, v) : aExcess;
    bOnly += bySet ? v - Math.min(u, v) : bExcess;
  }
  return { common, aOnly, bOnly };
}

// S(a, b), Eq. 1 and 6, or the ratio model; without the layer's scale and bias.
export function similarity(a, b, layer, off = new Set()) {
  const { common, aOnly, bOnly } = setsOf(a, b, layer, off);
  if (layer.model === "ratio") {
    const whole = common + layer.alpha * aOnly + layer.beta * bOnly;
    return whole === 0 ? 0 : common / whole;
  }
  return layer.theta * common - layer.alpha * aOnly - layer.beta * bOnly;
}

// Whether similarities are sums of one share for each feature, which can be shown as bars.
export function addsUp(layer) {
  return layer.level === "feature" && layer.model === "contrast";
}

// What the layer answers for measures a: one number for each prototype.
export function outputsOf(a, prototypes, bias, layer, off = new Set()) {
  return prototypes.map((b, p) => layer.scale * similarity(a, b, layer, off) + bias[p]);
}

// Indices in the order of descending values; equal ones keep their order.
export function descending(values) {
  return Array.from(values, (_, i) => i).sort((i, j) => values[j] - values[i] || i - j);
}

// The parts of an explanation, as Python's explain: shares by kind, bias and their sum.
export function explained(a, b, bias, layer, off = new Set()) {
  const { common, aOnly, bOnly } = sharesOf(a, b, layer, off);
  let all = bias;
  for (let k = 0; k < a.length; k++) {
    common[k] *= layer.scale;
    aOnly[k] *= layer.scale;
    bOnly[k] *= layer.scale;
    all += common[k] + aOnly[k] + bOnly[k];
  }
  return { common, aOnly, bOnly, bias, similarity: all };
}

// What each feature adds to the difference of two explanations, as Python's decision.
export function differenceOf(mine, theirs) {
  const shares = mine.common.map((_, k) =>
    mine.common[k] + mine.aOnly[k] + mine.bOnly[k] - theirs.common[k] - theirs.aOnly[k] - theirs.bOnly[k]);
  return { shares, bias: mine.bias - theirs.bias, difference: mine.similarity - theirs.similarity };
}

// The paper's semantic score of an object in a set of features: the sum of its measures of them.
export function score(measures, members) {
  let sum = 0;
  for (const k of members) sum += measures[k];
  return sum;
}

// Tversky's ratio model on numbers of features, |X ∩ F| / |X ∪ F| with alpha = beta = 1.
export function likeness(a, b) {
  let both = 0, either = 0;
  for (let k = 0; k < a.length; k++) {
    const x = a[k] > 0, y = b[k] > 0;
    both += x && y;
    either += x || y;
  }
  return either ? both / either : 0;
}

export function total(values) {
  let sum = 0;
  for (const value of values) sum += value;
  return sum;
}

// The fields of some objects, as Python's field_graph: features that the same of them have, among the strongest `top` of
// each. Returns [{has, features}], the largest first; among equals, that of the earlier objects.
export function fieldsOf(rows, top) {
  const having = new Map();
  rows.forEach((row, t) => {
    for (const k of descending(row).slice(0, top)) {
      if (!(row[k] > 0)) continue;
      if (!having.has(k)) having.set(k, rows.map(() => 0));
      having.get(k)[t] = 1;
    }
  });
  const fields = new Map();
  for (const k of [...having.keys()].sort((i, j) => i - j)) {
    const key = having.get(k).join("");
    if (!fields.has(key)) fields.set(key, { has: having.get(k), features: [] });
    fields.get(key).features.push(k);
  }
  const found = [...fields.entries()].sort(([a, x], [b, y]) => y.features.length - x.features.length || (a < b ? 1 : -1));
  return found.map(([, field]) => field);
}
