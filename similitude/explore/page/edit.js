// Edit: draw on a prototype or a feature, see what flips, apply, undo, save. It needs the server, which has the network.

import { keepAddress } from "./address.js";
import { drawing } from "./drawing.js";
import { className, exampleName, featureName, isHeld } from "./model.js";
import { card, exampleTile, h, percent, say, strip, whole, wideCard } from "./parts.js";

const FLIPS = 40;

export function edit(model, wanted, index) {
  if (!model.source.ask) {
    return [h("h1", {}, "Edit"), h("p", {}, "An edit needs the network, which this page does not hold. Start the explorer on it: "), h("p", {}, h("code", {}, "similitude explore RUN"))];
  }
  if (!model.about.offers.edit) {
    return [h("h1", {}, "Edit"), h("p", {}, "An edit needs a layer, and examples with labels to preview it on. On the pages of features they can be named, and on Why they can be switched off."), saving(model)];
  }
  if (!model.about.shape) return thresholdsAlone(model);
  const canvas = h("canvas", { class: "draw", tabindex: 0, role: "img", "aria-label": "Drawing. Arrow keys move the pen, space draws." });
  const board = drawing(canvas, model.about.shape, () => keep()), answer = h("div", {});
  const kind = h("select", { id: "kind", onchange: () => other() }, h("option", { value: "prototype" }, "prototype"), h("option", { value: "feature" }, "feature"), model.about.offers.add ? h("option", { value: "added" }, "new feature") : null);
  const which = h("select", { id: "index", "aria-label": "Which one", onchange: () => { keep(); load(); } });
  const example = h("input", { type: "text", id: "from", inputmode: "numeric", size: 6, placeholder: "number" });
  const erase = h("button", { type: "button", "aria-pressed": "false", onclick: () => { board.ink = board.ink ? 0 : 1; erase.setAttribute("aria-pressed", String(!board.ink)); } }, "Erase");
  const size = h("select", { id: "pen", onchange: () => { board.size = Number(size.value); } }, [1, 2, 3].map((n) => h("option", { value: n }, `${n} px`)));
  size.value = "2";
  const countNew = () => [...drawn.keys()].filter((key) => key.startsWith("added")).length;
  function fill() {
    const [count, name] = { prototype: [model.P, className], feature: [model.K, featureName], added: [countNew() + 1, (_, i) => `${i + 1}`] }[kind.value];
    which.replaceChildren(...Array.from({ length: count }, (_, i) => h("option", { value: i }, name(model, i))));
    which.value = String(kind.value === "added" ? count - 1 : 0);
  }
  // What was drawn so far: pixels by what they are for, such as "prototype 7"; all of it is one edit.
  const drawn = new Map(), list = h("div", { class: "row" });
  let target = "";
  function keep() {
    if (board.touched) drawn.set(target, Array.from(board.pixels));
    // After one new feature another one can be chosen.
    const next = countNew();
    if (kind.value === "added" && which.options.length <= next) which.append(h("option", { value: next }, `${next + 1}`));
    list.replaceChildren(...[...drawn.keys()].map((key) => h("span", { class: "chip" }, told(key), h("button", { class: "small", "aria-label": `leave out ${told(key)}`, onclick: () => { drawn.delete(key); load(); } }, "×"))));
  }
  function told(key) {
    const [name, i] = key.split(" ");
    return name === "prototype" ? `prototype ${className(model, Number(i))}` : name === "feature" ? featureName(model, Number(i)) : `new feature ${Number(i) + 1}`;
  }
  function changes() {
    keep();
    const found = { prototypes: {}, features: {}, added: [] };
    for (const [key, pixels] of drawn) {
      const [name, i] = key.split(" ");
      if (name === "added") found.added.push(pixels);
      else found[`${name}s`][i] = pixels;
    }
    if (!model.about.offers.add) delete found.added;
    return found;
  }
  const put = (pixels) => { board.set(pixels); board.touched = true; keep(); };
  const blank = () => new Array(board.pixels.length).fill(0);
  // Shows what is drawn on: as it was drawn so far, or as it is.
  const load = () => step(async () => {
    target = `${kind.value} ${which.value}`;
    if (kind.value !== "added") keepAddress(`#/edit/${kind.value}/${which.value}`);
    if (drawn.has(target)) board.set(drawn.get(target));
    else board.set(kind.value === "added" ? blank() : (await model.source.ask("image", { kind: kind.value, index: Number(which.value) })).pixels);
    keep();
  });
  const other = () => { keep(); fill(); load(); };
  const copy = () => step(async () => put((await model.source.ask("image", { kind: "example", index: Number(example.value || NaN) })).pixels));
  if (wanted === "feature" && index < model.K) kind.value = "feature";
  fill();
  if (index < which.options.length) which.value = String(index);
  load();
  return [
    h("h1", {}, "Edit"),
    h("p", { class: "lead" }, "Draw on what the network compares with, on one thing or several, and look at what flips before it does."),
    h("div", { class: "two wider", id: "edit" },
      h("section", { class: "card" },
        h("div", { class: "row" }, h("label", { for: "kind" }, "Draw on"), kind, which),
        canvas, h("p", {}),
        h("div", { class: "row" }, h("label", { for: "pen" }, "Pen"), size, erase, h("button", { onclick: () => put(blank()) }, "Clear"), h("button", { onclick: () => { drawn.delete(target); board.touched = false; load(); } }, "As it was")),
        h("div", { class: "row" }, h("label", { for: "from" }, "Copy example"), example, h("button", { onclick: copy }, "Copy")),
        list,
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
  const countNew = () => [...drawn.keys()].filter((key) => key.startsWith("added")).length;
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
