// The page of a graph of fields: the graph, and a list of its tokens and fields.

import { showGraph } from "./graph.js";

export const g = JSON.parse(document.getElementById("graph").textContent);
const canvas = document.getElementById("canvas"), list = document.getElementById("list"), buttons = new Map();
document.getElementById("title").textContent = g.title;
canvas.setAttribute("aria-label", g.label);

export const shown = showGraph(canvas, document.getElementById("tip"), g, {
  onchoose: (chosen) => { for (const [i, button] of buttons) button.setAttribute("aria-pressed", String(i === chosen)); },
});
for (let i = 0; i < g.names.length; i++) {
  if (g.kinds[i] === "feature") continue;
  const button = document.createElement("button"), dot = document.createElement("i"), top = document.createElement("p");
  dot.style.background = g.colours[i];
  button.append(dot, g.names[i] + (g.kinds[i] === "field" ? ` (${shown.size(i)})` : ""));
  button.setAttribute("aria-pressed", "false");
  button.onclick = () => shown.choose(i);
  top.textContent = g.tops[i];
  list.append(button, top);
  buttons.set(i, button);
}
window.onkeydown = (e) => { if (e.key === "Escape") shown.choose(-1); };
window.onresize = shown.fit;
shown.fit();
document.documentElement.dataset.ready = "yes";
