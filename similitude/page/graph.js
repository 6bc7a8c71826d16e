// A graph on a canvas: what a click lights up, and a view that moves. Names enter as text alone.

const RADIUS = { token: 7, feature: 2, field: 6 };
// Squared pixels within which a node is met, and how much nearer the large ones are.
const REACH = 100, LARGER = 30;

// Draws a graph {names, kinds, colours, tops, x, y, edges} and returns what may be done with it; tip is an element that
// follows the pointer. A graph that is fixed cannot be dragged or zoomed: the page around it scrolls.
export function showGraph(canvas, tip, g, { fixed = false, onchoose = () => {} } = {}) {
  const n = g.names.length, pen = canvas.getContext("2d"), near = Array.from({ length: n }, () => []);
  for (const [a, b] of g.edges) { near[a].push(b); near[b].push(a); }
  let view = null, chosen = -1, lit = new Set(), drag = null;

  function fit() {
    const w = canvas.clientWidth, h = canvas.clientHeight, dots = window.devicePixelRatio || 1;
    canvas.width = w * dots;
    canvas.height = h * dots;
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    if (fixed || !view) view = { k: Math.min(w, h) / (fixed ? 2.6 : 2.3), x: w / 2, y: h / 2 };
    draw();
  }
  const px = (i) => g.x[i] * view.k + view.x, py = (i) => -g.y[i] * view.k + view.y;
  const colour = (name) => getComputedStyle(canvas).getPropertyValue(name);

  function lines(which, alpha) {
    pen.beginPath();
    pen.globalAlpha = alpha;
    for (const [a, b] of g.edges) if (which(a, b)) { pen.moveTo(px(a), py(a)); pen.lineTo(px(b), py(b)); }
    pen.stroke();
  }
  function draw() {
    const some = chosen >= 0, [ink, paper] = [colour("--ink"), colour("--paper")];
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    pen.strokeStyle = ink;
    lines(() => true, some ? 0.04 : 0.1);
    if (some) lines((a, b) => lit.has(a) && lit.has(b), 0.5);
    for (const kind of ["feature", "field", "token"]) {
      for (let i = 0; i < n; i++) {
        if (g.kinds[i] !== kind) continue;
        pen.globalAlpha = !some || lit.has(i) ? 1 : 0.12;
        pen.beginPath();
        pen.arc(px(i), py(i), RADIUS[kind] * Math.min(2, 0.5 + view.k / 600), 0, 7);
        pen.fillStyle = g.colours[i];
        pen.fill();
        if (kind !== "feature") { pen.strokeStyle = kind === "token" ? ink : paper; pen.stroke(); }
      }
    }
    pen.textAlign = "center";
    pen.font = "bold 14px system-ui, sans-serif";
    pen.lineWidth = 3;
    for (let i = 0; i < n; i++) {
      if (g.kinds[i] !== "token") continue;
      pen.globalAlpha = !some || lit.has(i) ? 1 : 0.3;
      pen.strokeStyle = paper;
      pen.strokeText(g.names[i], px(i), py(i) - 12);
      pen.fillStyle = ink;
      pen.fillText(g.names[i], px(i), py(i) - 12);
    }
    pen.globalAlpha = pen.lineWidth = 1;
  }
  // Lights up a node and what it is joined to; -1 or the same node again for all.
  function choose(i) {
    chosen = i === chosen ? -1 : i;
    lit = new Set();
    if (chosen >= 0) {
      lit = new Set([chosen, ...near[chosen]]);
      // With a token its fields are lit, and with a field its tokens.
      const wanted = { token: "field", field: "token" }[g.kinds[chosen]];
      for (const f of near[chosen]) for (const m of near[f]) if (g.kinds[m] === wanted) lit.add(m);
    }
    draw();
    onchoose(chosen);
  }
  function find(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1, least = REACH;
    for (let i = 0; i < n; i++) {
      const d = (px(i) - x) ** 2 + (py(i) - y) ** 2 - (g.kinds[i] === "feature" ? 0 : LARGER);
      if (d < least) { least = d; best = i; }
    }
    return [best, x, y];
  }
  canvas.onpointerdown = (e) => {
    if (!fixed) canvas.setPointerCapture(e.pointerId);
    drag = { x: e.clientX, y: e.clientY, far: 0 };
  };
  canvas.onpointermove = (e) => {
    if (drag) {
      const dx = e.clientX - drag.x, dy = e.clientY - drag.y;
      drag = { x: e.clientX, y: e.clientY, far: drag.far + Math.abs(dx) + Math.abs(dy) };
      if (fixed) return;
      view.x += dx;
      view.y += dy;
      draw();
      return;
    }
    const [i, x, y] = find(e);
    tip.hidden = i < 0;
    if (i >= 0) {
      tip.textContent = g.names[i] + (g.tops[i] ? `: ${g.tops[i]}` : "");
      tip.style.left = `${x + 14}px`;
      tip.style.top = `${y + 14}px`;
    }
  };
  canvas.onpointerup = (e) => {
    if (drag && drag.far < 4) choose(find(e)[0]);
    drag = null;
  };
  canvas.onpointerleave = () => { tip.hidden = true; drag = null; };
  if (!fixed) {
    canvas.onwheel = (e) => {
      e.preventDefault();
      const [, x, y] = find(e), times = Math.exp(-e.deltaY / 500);
      view = { k: view.k * times, x: x + (view.x - x) * times, y: y + (view.y - y) * times };
      draw();
    };
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return { choose, fit, place: (i) => [px(i), py(i)], chosen: () => chosen, lit: () => lit, size: (i) => near[i].length };
}
