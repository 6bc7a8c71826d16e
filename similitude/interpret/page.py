"""A graph of semantic fields as one HTML file to explore: drag, zoom, point, click. It asks the network for nothing."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

from .graph import printable

if TYPE_CHECKING:
    from .graph import FieldGraph

STYLE = """
body { margin: 0; display: flex; height: 100vh; font: 14px/1.4 system-ui, sans-serif; color: #222 }
main { flex: 1; position: relative; min-width: 0 } canvas { width: 100%; height: 100%; touch-action: none }
aside { width: 21em; overflow: auto; border-left: 1px solid #ccc; padding: 0 1em }
h1 { font-size: 1.1em } button { font: inherit; text-align: left; background: none; border: 0; cursor: pointer }
button:focus, button:hover { text-decoration: underline } i { display: inline-block; width: .8em; height: .8em;
border-radius: 50%; margin-right: .4em } p { margin: 0 0 .8em 1.7em; color: #555 }
#tip { position: absolute; background: #fffd; border: 1px solid #999; padding: .1em .5em; pointer-events: none;
max-width: 24em } [hidden] { display: none }
"""

# Names go into the page by textContent and fillText alone, so that none is read as markup.
SCRIPT = """
const g = JSON.parse(document.getElementById("graph").textContent), n = g.names.length;
const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d"), tip = document.getElementById("tip");
const near = Array.from({length: n}, () => []);
for (const [a, b] of g.edges) { near[a].push(b); near[b].push(a); }
const radius = {token: 7, feature: 2, field: 6};
let view = null, chosen = -1, lit = new Set(), drag = null;

function fit() {
  const w = canvas.clientWidth, h = canvas.clientHeight, dots = window.devicePixelRatio || 1;
  canvas.width = w * dots; canvas.height = h * dots;
  pen.setTransform(dots, 0, 0, dots, 0, 0);
  view = view || {k: Math.min(w, h) / 2.3, x: w / 2, y: h / 2};
  draw();
}
const px = i => g.x[i] * view.k + view.x, py = i => -g.y[i] * view.k + view.y;

function lines(which, style) {
  pen.beginPath(); pen.strokeStyle = style;
  for (const [a, b] of g.edges) if (which(a, b)) { pen.moveTo(px(a), py(a)); pen.lineTo(px(b), py(b)); }
  pen.stroke();
}
function draw() {
  pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  const some = chosen >= 0, both = (a, b) => lit.has(a) && lit.has(b);
  lines(() => true, some ? "#0000000a" : "#00000018");
  if (some) lines(both, "#00000080");
  for (const kind of ["feature", "field", "token"])
    for (let i = 0; i < n; i++) if (g.kinds[i] === kind) {
      pen.globalAlpha = !some || lit.has(i) ? 1 : 0.12;
      pen.beginPath(); pen.arc(px(i), py(i), radius[kind] * Math.min(2, 0.5 + view.k / 600), 0, 7);
      pen.fillStyle = g.colours[i]; pen.fill();
      if (kind !== "feature") { pen.strokeStyle = kind === "token" ? "#000" : "#fff"; pen.stroke(); }
    }
  pen.textAlign = "center"; pen.font = "bold 14px system-ui, sans-serif"; pen.lineWidth = 3;
  for (let i = 0; i < n; i++) if (g.kinds[i] === "token") {
    pen.globalAlpha = !some || lit.has(i) ? 1 : 0.3;
    pen.strokeStyle = "#fff"; pen.strokeText(g.names[i], px(i), py(i) - 12);
    pen.fillStyle = "#000"; pen.fillText(g.names[i], px(i), py(i) - 12);
  }
  pen.globalAlpha = 1; pen.lineWidth = 1;
}
function choose(i) {
  chosen = i === chosen ? -1 : i; lit = new Set();
  if (chosen >= 0) {
    lit = new Set([chosen, ...near[chosen]]);
    // With a token its fields are lit, and with a field its tokens.
    const wanted = {token: "field", field: "token"}[g.kinds[chosen]];
    for (const f of near[chosen]) for (const m of near[f]) if (g.kinds[m] === wanted) lit.add(m);
  }
  draw();
}
function find(event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  let best = -1, least = 100;
  for (let i = 0; i < n; i++) {
    const d = (px(i) - x) ** 2 + (py(i) - y) ** 2 - (g.kinds[i] === "feature" ? 0 : 30);
    if (d < least) { least = d; best = i; }
  }
  return [best, x, y];
}
canvas.onpointerdown = e => { canvas.setPointerCapture(e.pointerId); drag = {x: e.clientX, y: e.clientY, far: 0}; };
canvas.onpointermove = e => {
  if (drag) {
    const dx = e.clientX - drag.x, dy = e.clientY - drag.y;
    view.x += dx; view.y += dy;
    drag = {x: e.clientX, y: e.clientY, far: drag.far + Math.abs(dx) + Math.abs(dy)};
    return draw();
  }
  const [i, x, y] = find(e);
  tip.hidden = i < 0;
  if (i >= 0) {
    tip.textContent = g.names[i] + (g.tops[i] ? ": " + g.tops[i] : "");
    tip.style.left = x + 14 + "px"; tip.style.top = y + 14 + "px";
  }
};
canvas.onpointerup = e => { if (drag && drag.far < 4) choose(find(e)[0]); drag = null; };
canvas.onpointerleave = () => { tip.hidden = true; };
canvas.onwheel = e => {
  e.preventDefault();
  const [, x, y] = find(e), times = Math.exp(-e.deltaY / 500);
  view = {k: view.k * times, x: x + (view.x - x) * times, y: y + (view.y - y) * times};
  draw();
};
window.onkeydown = e => { if (e.key === "Escape") choose(-1); };
window.onresize = fit;
const list = document.getElementById("list");
for (let i = 0; i < n; i++) if (g.kinds[i] !== "feature") {
  const button = document.createElement("button"), dot = document.createElement("i");
  dot.style.background = g.colours[i];
  const size = g.kinds[i] === "field" ? " (" + near[i].length + ")" : "";
  button.append(dot, g.names[i] + size); button.onclick = () => choose(i);
  const top = document.createElement("p"); top.textContent = g.tops[i];
  list.append(button, top);
}
fit();
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src \
'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main><canvas role="img" aria-label="{label}"></canvas><div id="tip" hidden></div></main>
<aside>
<h1>{title}</h1>
<p style="margin-left:0">Drag to move, wheel to zoom, point to read, click to follow. Yellow: tokens. Dots: features,
one colour a distinct intersection. Circles: the fields they form, with their number of features.</p>
<div id="list"></div>
</aside>
<script type="application/json" id="graph">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(graph: FieldGraph, title: str = "Semantic fields") -> str:
    """The page's source."""
    tops = [""] * (len(graph) - len(graph.fields)) + [printable(", ".join(field.top)) for field in graph.fields]
    x, y = graph.positions.round(4).T.tolist()
    content = {"names": graph.labels(), "kinds": graph.kinds(), "colours": graph.colours(), "tops": tops}
    text = json.dumps({**content, "x": x, "y": y, "edges": graph.edges.tolist()}, separators=(",", ":"))
    for mark in "<>&":
        # JSON reads these as the marks themselves, and HTML does not.
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    names = ", ".join(printable(token) for token in graph.tokens)
    label = f"graph of {len(graph.features)} features of {names} and the {len(graph.fields)} fields that they form"
    parts = {"title": escape(printable(title)), "label": escape(label), "data": text, "style": STYLE, "script": SCRIPT}
    return PAGE.format(**parts)
