// Elements that screens are made of. All text enters as text: nothing from the data is ever read as markup.

import { addressOf, className, exampleName, featureName, hintOf, isWrong, labelOf, objectName } from "./model.js";

// An element with attributes, listeners ("onclick") and children: elements, or what becomes text.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat());
  return element;
}

export const percent = (share, digits = share > 0 && share < 0.001 ? 2 : 1) => `${(100 * share).toFixed(digits)} %`;
export const whole = (n) => n.toLocaleString("en");
// With a sign, and a true minus.
export const signed = (value, digits = 4) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
export const plain = (value, digits = 4) => value.toFixed(digits).replace("-", "−");

export function say(text) {
  document.getElementById("status").textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { document.getElementById("status").textContent = ""; }, 5000);
}

// A file of the page's own that the browser saves.
export function download(blob, name) {
  h("a", { href: URL.createObjectURL(blob), download: name }).click();
}

export const card = (heading, ...children) => h("section", { class: "card" }, heading ? h("h2", {}, heading) : null, ...children);
export const wideCard = (heading, ...children) => h("section", { class: "card wide" }, heading ? h("h2", {}, heading) : null, ...children);

export function figures(pairs) {
  return h("dl", { class: "figures" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// A picture out of a sprite, or null where there is none.
export function thumb(sprite, index, side, label) {
  if (!sprite || index >= sprite.count) return null;
  const scale = side / Math.max(sprite.width, sprite.height), element = h("span", { class: "thumb", role: "img", "aria-label": label });
  const width = sprite.width * scale, height = sprite.height * scale, rows = Math.ceil(sprite.count / sprite.columns);
  Object.assign(element.style, {
    width: `${width}px`, height: `${height}px`, backgroundImage: `url(${sprite.url})`,
    backgroundSize: `${width * sprite.columns}px ${height * rows}px`,
    backgroundPosition: `${-(index % sprite.columns) * width}px ${-Math.floor(index / sprite.columns) * height}px`,
  });
  return element;
}

export function pictureOf(model, { kind, index }, side) {
  return thumb(model.sprites[kind], index, side, objectName(model, { kind, index }));
}

// An example as a link: its picture, or its name.
export function exampleTile(model, i, { caption = "", href = null, side = 56 } = {}) {
  const picture = pictureOf(model, { kind: "example", index: i }, side), wrong = isWrong(model, i), label = labelOf(model, i);
  const told = label === null ? "" : `, ${className(model, label)}${wrong ? ", answered wrongly" : ""}`;
  const address = href ?? (model.P ? `#/why/${i}` : `#/pair/e${i}`);
  return h("a", { class: `tile${picture ? "" : " named"}${wrong ? " wrong" : ""}`, href: address, "aria-label": `${exampleName(model, i)}${caption ? ` ${caption}` : ""}${told}`, title: `${exampleName(model, i)}${told}` },
    picture ?? h("span", {}, exampleName(model, i)), caption ? [" ", h("span", { class: "caption" }, caption)] : null);
}

// A link to the drawing of a prototype or a feature, where there is a network to change.
export function drawLink(model, kind, index) {
  return model.about.offers?.edit && model.about.shape ? h("p", {}, h("a", { href: `#/edit/${kind}/${index}` }, "Draw on it")) : null;
}

export function strip(items) {
  return h("ul", { class: "strip" }, items.map((item) => h("li", {}, item)));
}

export function featureLink(model, k, side = 26) {
  const picture = thumb(model.sprites.feature, k, side, "");
  picture?.setAttribute("aria-hidden", "true");
  const hint = hintOf(model, k, 2);
  return [picture, h("a", { href: `#/feature/${k}` }, featureName(model, k)), hint ? h("span", { class: "soft hinted", title: hint }, hint) : null];
}

export function prototypeLink(model, p, side = 26) {
  const picture = thumb(model.sprites.prototype, p, side, "");
  picture?.setAttribute("aria-hidden", "true");
  return [picture, h("a", { href: `#/prototype/${p}` }, className(model, p))];
}

// One row of bars: what it is of, a bar from one value to another on a common scale, and a number.
export function barRow(label, from, to, scale, kind, value) {
  const track = h("div", { class: "track", "aria-hidden": "true" }), place = (v) => (100 * (v - scale.low)) / (scale.high - scale.low || 1);
  const zero = h("span", { class: "zero" }), bar = h("span", { class: kind });
  zero.style.left = `${place(0)}%`;
  bar.style.left = `${place(Math.min(from, to))}%`;
  bar.style.width = `${Math.abs(place(to) - place(from))}%`;
  track.append(zero, bar);
  return [h("div", { class: "label" }, label), track, h("div", { class: "value" }, value)];
}

export function barHeading(text, value, kind) {
  return h("div", { class: "heading" }, h("span", {}, kind ? h("span", { class: `key ${kind}` }) : null, text), h("span", { class: "number" }, value));
}

// Bars from 0 for values of things, the largest first.
export function barList(rows, wide = false) {
  const values = rows.map((row) => row.value), scale = { low: Math.min(0, ...values), high: Math.max(0, ...values) };
  return h("div", { class: wide ? "bars long" : "bars" }, rows.flatMap((row) => barRow(row.label, 0, row.value, scale, row.kind ?? "plain", row.shown)));
}

// A histogram with a line at a value such as a threshold; described for those who cannot see it.
export function histogram(values, { bins = 32, line = null, label, low = null, high = null }) {
  const least = low ?? Math.min(...values), most = high ?? Math.max(...values), width = (most - least) / bins || 1;
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.max(0, Math.floor((value - least) / width)))]++;
  const W = 420, H = 120, peak = Math.max(...counts, 1), x = (v) => ((v - least) / (most - least || 1)) * W;
  const bars = counts.map((count, i) => {
    const height = count ? Math.max(1, (count / peak) * H) : 0;
    return svg("rect", { class: "bar", x: (i * W) / bins + 0.5, width: W / bins - 1, y: H - height, height },
      svg("title", {}, `${plain(least + i * width, 2)} to ${plain(least + (i + 1) * width, 2)}: ${whole(count)}`));
  });
  const marks = line === null || line < least || line > most ? [] : [svg("line", { class: "cut", x1: x(line), x2: x(line), y1: -6, y2: H })];
  return svg("svg", { viewBox: `-2 -10 ${W + 4} ${H + 32}`, role: "img", "aria-label": label }, bars, marks,
    svg("line", { class: "rule", x1: 0, x2: W, y1: H, y2: H }),
    svg("text", { x: 0, y: H + 16 }, plain(least, 2)), svg("text", { x: W, y: H + 16, "text-anchor": "end" }, plain(most, 2)));
}

// A grid of cards of one size of which only those in view are in the page, so that ten thousand scroll as ten.
export function virtualGrid(indices, make, { width = 220, height = 78, gap = 10 } = {}) {
  const grid = h("div", { class: "grid", role: "list" }), shown = new Map();
  function update() {
    if (!grid.isConnected) return;
    const across = Math.max(1, Math.floor((grid.clientWidth + gap) / (width + gap))), wide = (grid.clientWidth + gap) / across - gap;
    grid.style.height = `${Math.ceil(indices.length / across) * (height + gap)}px`;
    const top = -grid.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / (height + gap)) - 2) * across;
    const last = Math.min(indices.length, (Math.ceil((top + window.innerHeight) / (height + gap)) + 2) * across);
    for (const [place, element] of shown) if (place < first || place >= last) { element.remove(); shown.delete(place); }
    for (let place = first; place < last; place++) {
      if (!shown.has(place)) {
        const element = h("div", { class: "cell", role: "listitem", "aria-posinset": place + 1, "aria-setsize": indices.length }, make(indices[place]));
        shown.set(place, element);
      }
      const element = shown.get(place);
      Object.assign(element.style, { left: `${(place % across) * (wide + gap)}px`, top: `${Math.floor(place / across) * (height + gap)}px`, width: `${wide}px`, height: `${height}px` });
      if (!element.isConnected) grid.append(element);
    }
  }
  const again = () => (grid.isConnected ? update() : stop());
  const stop = () => { window.removeEventListener("scroll", again); window.removeEventListener("resize", again); };
  window.addEventListener("scroll", again, { passive: true });
  window.addEventListener("resize", again);
  requestAnimationFrame(update);
  return grid;
}

export const pairAddress = (a, b) => `#/pair/${addressOf(a)}/${addressOf(b)}`;
