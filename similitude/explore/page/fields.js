// The graph of fields of the objects that an expression names: which features all of some have and no other has.

import { fieldsOf } from "./arithmetic.js";
import { quoted } from "./expression.js";
import { showGraph } from "./graph.js";
import { featureName, haveMeasures, measuresOf } from "./model.js";
import { h, wideCard, whole } from "./parts.js";

// Objects of a graph at most, strongest features of each, and fields that are listed.
const MOST = 8, TOP = 1000, LISTED = 12;
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"], TOKEN = "#f0e442";
// Turns of the layout, its angle between features, and the part of the unit disc that fields fill.
const TURNS = 80, ANGLE = 2.399963, FILLED = 0.3;

// A card with the graph, or null where fewer than two objects have features.
export async function fieldsCard(model, named) {
  const objects = named.slice(0, MOST);
  await Promise.all(objects.map(([, object]) => haveMeasures(model, object)));
  const names = objects.map(([name]) => name), rows = objects.map(([, object]) => measuresOf(model, object));
  const fields = fieldsOf(rows, TOP);
  if (names.length < 2 || !fields.length) return null;
  const tip = h("div", { class: "tip", hidden: true });
  const canvas = h("canvas", { class: "graph", role: "img", "aria-label": `Graph of ${names.join(", ")}, their features and the ${whole(fields.length)} fields that these form; they are listed below.` });
  const shown = showGraph(canvas, tip, graphOf(model, names, fields), { fixed: true });
  new ResizeObserver(shown.fit).observe(canvas);
  const [T, F] = [names.length, fields.reduce((sum, { features }) => sum + features.length, 0)];
  const item = ({ has, features }, f) => {
    const dot = h("span", { class: "dot" }), expression = expressionOf(names, has, quoted);
    dot.style.background = colourOf(f);
    const light = () => { if (shown.chosen() !== T + F + f) shown.choose(T + F + f); };
    return h("li", { onmouseenter: light, onmouseleave: () => shown.choose(-1) }, dot,
      h("a", { href: `#/sets/${encodeURIComponent(expression)}`, onfocus: light, onblur: () => shown.choose(-1) }, expressionOf(names, has, (name) => name)), ` ${whole(features.length)}`);
  };
  return wideCard("Fields", h("p", { class: "soft" }, "Dots are features, in one colour where the same objects have them; such features are a field. Point at one to see whose it is."),
    h("div", { class: "graph" }, canvas, tip),
    h("ul", { class: "fields" }, fields.slice(0, LISTED).map(item)),
    fields.length > LISTED ? h("p", { class: "soft" }, `and ${whole(fields.length - LISTED)} smaller ones`) : null);
}

function expressionOf(names, has, written) {
  const members = names.filter((_, t) => has[t]), others = names.filter((_, t) => !has[t]);
  return [members.map(written).join(" & "), ...others.map(written)].join(" - ");
}

const colourOf = (f) => (f < COLOURS.length ? COLOURS[f] : `hsl(${(f * 137.5) % 360} 45% ${40 + ((f * 13) % 30)}%)`);

// Nodes in the order objects, features, fields, as Python's FieldGraph has them.
function graphOf(model, names, fields) {
  const T = names.length, places = placed(T, fields), g = { names: [...names], kinds: names.map(() => "token"), colours: names.map(() => TOKEN), tops: [], x: [], y: [], edges: [] };
  const F = fields.reduce((sum, { features }) => sum + features.length, 0);
  for (let t = 0; t < T; t++) place(g, circle(t, T));
  fields.forEach(({ has, features }, f) => features.forEach((k, n) => {
    const me = g.x.length, far = places[f].radius * Math.sqrt((n + 0.5) / features.length);
    place(g, [places[f].x + far * Math.cos(ANGLE * n), places[f].y + far * Math.sin(ANGLE * n)]);
    g.names.push(featureName(model, k));
    g.kinds.push("feature");
    g.colours.push(colourOf(f));
    has.forEach((one, t) => { if (one) g.edges.push([t, me]); });
    g.edges.push([T + F + f, me]);
  }));
  fields.forEach(({ has, features }, f) => {
    place(g, [places[f].x, places[f].y]);
    g.names.push(`${expressionOf(names, has, (name) => name)}: ${whole(features.length)}`);
    g.kinds.push("field");
    g.colours.push(colourOf(f));
  });
  return g;
}

function place(g, [x, y]) {
  g.x.push(x);
  g.y.push(y);
}

const circle = (t, T) => [Math.sin((2 * Math.PI * (t + 0.5)) / T) * -1, Math.cos((2 * Math.PI * (t + 0.5)) / T)];

// A disc for each field amid its objects, with an area as its number of features; discs that overlap push each other.
function placed(T, fields) {
  const sum = fields.reduce((n, { features }) => n + features.length, 0);
  const discs = fields.map(({ has, features }, f) => {
    const own = has.flatMap((one, t) => (one ? [circle(t, T)] : [])), at = (axis) => (0.75 * own.reduce((s, p) => s + p[axis], 0)) / own.length;
    // Two fields amid the same place go apart, each its own way.
    return { x: at(0) + 1e-3 * Math.cos(f), y: at(1) + 1e-3 * Math.sin(f), radius: Math.max(0.02, Math.sqrt((FILLED * features.length) / sum)) };
  });
  for (let turn = 0; turn < TURNS; turn++) {
    for (const [i, a] of discs.entries()) {
      for (const b of discs.slice(i + 1)) {
        const dx = b.x - a.x, dy = b.y - a.y, d = Math.hypot(dx, dy) || 1e-6, over = (1.1 * (a.radius + b.radius) - d) / 2;
        if (over <= 0) continue;
        a.x -= (over * dx) / d;
        a.y -= (over * dy) / d;
        b.x += (over * dx) / d;
        b.y += (over * dy) / d;
      }
    }
  }
  return discs;
}
