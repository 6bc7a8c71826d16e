// Edit: draw on a prototype or a feature, see what flips, apply, undo, save. It needs the server, which has the network.

import { className, exampleName, featureName, isHeld } from "./model.js";
import { card, exampleTile, h, percent, say, strip, whole, wideCard } from "./parts.js";

const FLIPS = 40;
// Colours of signed weights, as explore/pictures.py has them.
const BELOW = [179, 88, 6], ABOVE = [84, 39, 136];

export function edit(model, wanted, index) {
  if (!model.source.ask) {
    return [h("h1", {}, "Edit"), h("p", {}, "An edit needs the network, which this page does not hold. Start the explorer on it: "), h("p", {}, h("code", {}, "similitude explore RUN"))];
  }
  if (!model.about.offers.edit) {
    return [h("h1", {}, "Edit"), h("p", {}, "An edit needs a layer, and examples with labels to preview it on. On the pages of features they can be named, and on Why they can be switched off."), saving(model)];
  }
  if (!model.about.shape) return thresholdsAlone(model);
  const canvas = h("canvas", { class: "draw", tabindex: 0, role: "img", "aria-label": "Drawing. Arrow keys move the pen, space draws." });
  const board = drawing(canvas, model.about.shape), answer = h("div", {});
  const kind = h("select", { id: "kind", onchange: () => { fill(); load(); } }, h("option", { value: "prototype" }, "prototype"), h("option", { value: "feature" }, "feature"), model.about.offers.add ? h("option", { value: "added" }, "new feature") : null);
  const which = h("select", { id: "index", "aria-label": "Which one", onchange: () => load() });
  const example = h("input", { type: "text", id: "from", inputmode: "numeric", size: 6, placeholder: "number" });
  const erase = h("button", { type: "button", "aria-pressed": "false", onclick: () => { board.ink = board.ink ? 0 : 1; erase.setAttribute("aria-pressed", String(!board.ink)); } }, "Erase");
  const size = h("select", { id: "pen", onchange: () => { board.size = Number(size.value); } }, [1, 2, 3].map((n) => h("option", { value: n }, `${n} px`)));
  size.value = "2";
  function fill() {
    const [count, name] = { prototype: [model.P, className], feature: [model.K, featureName], added: [0, null] }[kind.value];
    which.replaceChildren(...Array.from({ length: count }, (_, i) => h("option", { value: i }, name(model, i))));
    which.disabled = !count;
  }
  const changes = () => {
    const pixels = Array.from(board.pixels);
    if (kind.value === "added") return { added: [pixels] };
    return { [`${kind.value}s`]: { [which.value]: pixels } };
  };
  const load = () => step(async () => {
    answer.replaceChildren();
    if (kind.value === "added") board.set(new Array(board.pixels.length).fill(0));
    else board.set((await model.source.ask("image", { kind: kind.value, index: Number(which.value) })).pixels);
  });
  const copy = () => step(async () => board.set((await model.source.ask("image", { kind: "example", index: Number(example.value) })).pixels));
  if (wanted === "feature" && index < model.K) kind.value = "feature";
  fill();
  if (index < which.options.length) which.value = String(index);
  load();
  return [
    h("h1", {}, "Edit"),
    h("p", { class: "lead" }, "Draw on what the network compares with, and look at what changes before it does."),
    h("div", { class: "two wider", id: "edit" },
      h("section", { class: "card" },
        h("div", { class: "row" }, h("label", { for: "kind" }, "Draw on"), kind, which),
        canvas, h("p", {}),
        h("div", { class: "row" }, h("label", { for: "pen" }, "Pen"), size, erase, h("button", { onclick: () => board.set(new Array(board.pixels.length).fill(0)) }, "Clear"), h("button", { onclick: load }, "As it was")),
        h("div", { class: "row" }, h("label", { for: "from" }, "Copy example"), example, h("button", { onclick: copy }, "Copy")),
        ...deciding(model, changes, answer)),
      answer),
    model.layer.thresholds ? h("section", {}, h("p", {}), ...thresholds(model)) : null,
  ];
}

// Runs a step with the buttons off; what goes wrong is said.
async function step(action) {
  const buttons = document.querySelectorAll("#content button");
  buttons.forEach((button) => { button.disabled = true; });
  try { await action(); } catch (error) { say(error.message); }
  buttons.forEach((button) => { button.disabled = false; });
}

// What can be done with a change: look at it first, make it, take it back, save the network.
function deciding(model, changes, answer, id = (name) => name) {
  const changed = (text, about) => {
    model.source.about = about;
    window.dispatchEvent(new CustomEvent("changed", { detail: text }));
  };
  const preview = () => step(async () => answer.replaceChildren(...previewed(model, await model.source.ask("preview", changes()))));
  const apply = () => step(async () => changed("The edit is applied.", await model.source.ask("apply", changes())));
  const undo = () => step(async () => changed("The edit is undone.", await model.source.ask("undo")));
  return [
    h("div", { class: "row" }, h("button", { class: "primary", id: id("preview"), onclick: preview }, "Preview"), h("button", { id: id("apply"), onclick: apply }, "Apply"), h("button", { id: id("undo"), onclick: undo }, `Undo (${model.about.edits})`)),
    saveButton(model),
  ];
}

// A feature's threshold: a higher one gives it to fewer examples.
function thresholds(model) {
  const which = h("select", { id: "feature", "aria-label": "Which feature", onchange: () => fill() }, Array.from({ length: model.K }, (_, k) => h("option", { value: k }, featureName(model, k))));
  const value = h("input", { type: "number", id: "threshold", step: "any", oninput: () => tell() }), told = h("p", { class: "soft", role: "status" }), answer = h("div", {});
  const k = () => Number(which.value), now = () => model.data.thresholds.values[k()];
  function tell() {
    const column = model.data.measures.column(k()), shift = Number(value.value) - now();
    told.textContent = `Of the examples here ${percent(column.filter((v) => v > shift).length / column.length)} would have it; now ${percent(column.filter((v) => v > 0).length / column.length)} do.`;
  }
  function fill() {
    value.value = String(Number(now().toPrecision(6)));
    answer.replaceChildren();
    tell();
  }
  fill();
  return [h("div", { class: "two wider" },
    h("section", { class: "card" }, h("h2", {}, "Threshold of a feature"), h("div", { class: "row" }, which, h("label", { for: "threshold" }, "threshold"), value), told,
      ...deciding(model, () => ({ thresholds: { [k()]: Number(value.value) } }), answer, (name) => `${name}-threshold`)), answer)];
}

function thresholdsAlone(model) {
  const none = h("p", {}, "The layer's vectors are no images, so there is nothing to draw on, and its features have no thresholds. On Why they can be switched off.");
  return [h("h1", {}, "Edit"), h("p", { class: "lead" }, "The vectors of this layer are no images to draw on."), ...(model.layer.thresholds ? thresholds(model) : [none, saving(model)])];
}

function previewed(model, seen) {
  const change = (before, after) => `${after >= before ? "+" : "−"}${Math.abs(100 * (after - before)).toFixed(2)}`;
  const row = (name, before, after) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "right" }, percent(before)), h("td", { class: "right" }, percent(after)), h("td", { class: "right" }, change(before, after)));
  const body = [row("all", ...seen.all), ...seen.classes.map(([label, before, after]) => row(className(model, label), before, after))];
  const flips = seen.flips.slice(0, FLIPS).map(([i, before, after, label]) => {
    const caption = `${className(model, before)} → ${className(model, after)}${after === label ? " ✓" : ""}`;
    return isHeld(model, i) ? exampleTile(model, i, { caption }) : h("span", { class: "chip" }, `${exampleName(model, i)}: ${caption}`);
  });
  return [
    card("Accuracy", h("p", { class: "verdict", id: "outcome" }, `${whole(seen.flips.length)} answers flip: ${whole(seen.repaired)} repaired, ${whole(seen.broken)} broken`),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Accuracy by class" }, h("table", {}, h("thead", {}, h("tr", {}, ["class", "before", "after", "change"].map((name, i) => h("th", { class: i ? "right" : "" }, name)))), h("tbody", {}, body)))),
    h("p", {}), flips.length ? wideCard("What flips", strip(flips)) : null,
  ].filter(Boolean);
}

function saving(model) {
  return model.about.offers.save ? h("section", { class: "card" }, saveButton(model)) : null;
}

// The network as it is now, as a file that Python loads; the browser downloads it.
function saveButton(model) {
  return h("button", { id: "save", onclick: async () => {
    try {
      const url = URL.createObjectURL(await model.source.save());
      h("a", { href: url, download: "edited.safetensors" }).click();
      say("The network is saved as edited.safetensors, among your downloads.");
    } catch (error) { say(error.message); }
  } }, "Save the network");
}

// A board of pixels that a pen, a finger or keys draw on; pixels that are not touched keep their exact values.
function drawing(canvas, shape) {
  const [height, width] = shape.slice(-2), paper = canvas.getContext("2d"), image = paper.createImageData(width, height);
  canvas.width = width;
  canvas.height = height;
  const board = { pixels: new Float64Array(shape.reduce((a, b) => a * b, 1)), ink: 1, size: 2, set, x: width >> 1, y: height >> 1 };
  let signed = false, full = 1;
  const planes = board.pixels.length / (width * height);
  // Ink is 1 on images, and the largest weight on signed ones, which are purple above 0 and orange below.
  const colour = (value, c) => (signed ? 247 + Math.min(1, Math.abs(value) / full) * ((value > 0 ? ABOVE : BELOW)[c] - 247) : 255 * Math.min(1, Math.max(0, value)));
  function show() {
    for (let i = 0; i < width * height; i++) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = colour(board.pixels[(planes === 3 ? c : 0) * width * height + i], c);
      image.data[4 * i + 3] = 255;
    }
    paper.putImageData(image, 0, 0);
  }
  function set(values) {
    board.pixels = Float64Array.from(values);
    signed ||= board.pixels.some((value) => value < 0);
    full = signed ? Math.max(...board.pixels.map(Math.abs)) || full : 1;
    show();
  }
  function dot(x, y) {
    for (let dy = 0; dy < board.size; dy++) for (let dx = 0; dx < board.size; dx++) {
      const [px, py] = [x + dx - (board.size >> 1), y + dy - (board.size >> 1)];
      if (px < 0 || py < 0 || px >= width || py >= height) continue;
      for (let c = 0; c < planes; c++) board.pixels[c * width * height + py * width + px] = board.ink * full;
    }
  }
  function to(event, start) {
    const box = canvas.getBoundingClientRect(), [x, y] = [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
    const [fromX, fromY] = start ? [x, y] : [board.x, board.y], steps = Math.max(1, Math.ceil(Math.hypot(x - fromX, y - fromY)));
    for (let s = 0; s <= steps; s++) dot(Math.floor(fromX + ((x - fromX) * s) / steps), Math.floor(fromY + ((y - fromY) * s) / steps));
    [board.x, board.y] = [x, y];
    show();
  }
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); to(event, true); });
  canvas.addEventListener("pointermove", (event) => { if (event.buttons) to(event, false); });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move) [board.x, board.y] = [Math.min(width - 1, Math.max(0, Math.floor(board.x) + move[0])), Math.min(height - 1, Math.max(0, Math.floor(board.y) + move[1]))];
    if (event.key === " ") dot(Math.floor(board.x), Math.floor(board.y));
    if (!move && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    show();
    image.data.set([255, 120, 0, 255], 4 * (Math.floor(board.y) * width + Math.floor(board.x)));
    paper.putImageData(image, 0, 0);
  });
  return board;
}
