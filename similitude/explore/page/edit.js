// Edit: draw on a prototype or a feature, see what flips, apply, undo, save. It needs the server, which has the network.

import { keepAddress } from "./address.js";
import { drawing } from "./drawing.js";
import { className, exampleName, featureName, isWrong, labelOf } from "./model.js";
import { download, exampleTile, h, percent, say, strip, whole, wideCard } from "./parts.js";
import { previewed } from "./preview.js";

// Examples of a class that are shown as read wrongly.
const MISREAD = 24;
const INKS = [["faint, 0.5", 0.5], ["0.75", 0.75], ["full, 1", 1], ["1.5", 1.5], ["2", 2]];

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
  const options = (pairs) => pairs.map(([name, value]) => h("option", { value }, name));
  const kind = h("select", { id: "kind", onchange: () => other() }, options([["prototype", "prototype"], ["feature", "feature"]]), model.about.offers.add ? options([["new feature", "added"]]) : null);
  const which = h("select", { id: "index", "aria-label": "Which one", onchange: () => { keep(); load(); } });
  const size = h("select", { id: "pen", onchange: () => { board.size = Number(size.value); } }, options([1, 2, 3, 4].map((n) => [`${n} px`, n])));
  size.value = "2";
  const ink = h("select", { id: "ink", onchange: () => { board.ink = Number(ink.value); } });
  const example = h("input", { type: "text", id: "from", size: 6, placeholder: "number" });
  const factor = h("select", { id: "factor", "aria-label": "How strong" }, options([0.5, 1, 1.5, 2].map((n) => [`× ${n}`, n])));
  factor.value = "1";
  const news = () => [...drawn.keys()].filter((key) => key.startsWith("added")).map((key) => Number(key.split(" ")[1]));
  const next = () => Math.max(-1, ...news()) + 1;
  function fill() {
    const [indices, name] = {
      prototype: [model.P, className], feature: [model.K, featureName], added: [next() + 1, (_, i) => `${i + 1}`],
    }[kind.value];
    which.replaceChildren(...options(Array.from({ length: indices }, (_, i) => [name(model, i), i])));
    which.value = String(kind.value === "added" ? indices - 1 : 0);
  }
  // What was drawn so far: pixels by what they are for, such as "prototype 7"; all of it is one edit.
  const drawn = new Map(), list = h("div", { class: "row", id: "drawn" });
  let target = "";
  function keep() {
    if (board.touched) drawn.set(target, Array.from(board.pixels));
    // After one new feature another one can be chosen.
    if (kind.value === "added") for (let i = which.options.length; i <= next(); i++) which.append(...options([[`${i + 1}`, i]]));
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
  const image = async (of, i) => (await model.source.ask("image", { kind: of, index: i })).pixels;
  // Shows what is drawn on: as it was drawn so far, or as it is.
  const load = () => step(async () => {
    target = `${kind.value} ${which.value}`;
    if (kind.value !== "added") keepAddress(`#/edit/${kind.value}/${which.value}`);
    if (drawn.has(target)) board.set(drawn.get(target));
    else board.set(kind.value === "added" ? blank() : await image(kind.value, Number(which.value)));
    // Signed weights can count against; 0 erases.
    const chosen = ink.value || "1";
    ink.replaceChildren(...options([...INKS, ...(board.signed ? [["against, −1", -1]] : []), ["erase", 0]]));
    ink.value = chosen;
    keep();
    if (!answer.querySelector("#outcome")) answer.replaceChildren(...[kind.value === "prototype" ? misread(model, Number(which.value)) : null].filter(Boolean));
  });
  const other = () => { keep(); fill(); load(); };
  const copy = () => step(async () => put(await image("example", Number(example.value.replace("#", "") || NaN))));
  const add = () => {
    drawn.set(`added ${next()}`, Array.from(board.pixels, (value) => value * Number(factor.value)));
    keep();
    say(`The drawing is new feature ${next()} of this edit too.`);
  };
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
        canvas,
        h("p", { class: "soft hint" }, "Hold Shift for a straight line. Faint ink changes less."),
        h("div", { class: "row" }, h("span", { class: "field" }, h("label", { for: "pen" }, "Pen"), size), h("span", { class: "field" }, h("label", { for: "ink" }, "Ink"), ink)),
        ...deciding(model, changes, answer),
        list,
        h("div", { class: "row" }, h("button", { onclick: () => put(blank()) }, "Clear"), h("button", { onclick: () => { drawn.delete(target); board.touched = false; load(); } }, "As it was")),
        h("div", { class: "row" }, h("label", { for: "from" }, "Copy example"), example, h("button", { onclick: copy }, "Copy")),
        model.about.offers.add ? h("div", { class: "row" }, h("button", { id: "add", onclick: add }, "Add as a feature"), factor) : null,
        saveButton(model)),
      answer),
    model.about.offers.thresholds ? h("section", {}, h("p", {}), ...thresholds(model)) : null,
  ];
}

// Examples of a class that have another answer now: what a drawing might repair.
function misread(model, p) {
  const own = Array.from({ length: model.H }, (_, i) => i).filter((i) => labelOf(model, i) === p), wrong = own.filter((i) => isWrong(model, i));
  if (!wrong.length) return null;
  return wideCard(`Answered wrongly now: ${whole(wrong.length)} of ${whole(own.length)} examples of ${className(model, p)} on this page`,
    strip(wrong.slice(0, MISREAD).map((i) => exampleTile(model, i, { caption: `${exampleName(model, i)} as ${className(model, model.data.answers.values[i])}` }))));
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
  const preview = () => step(async () => {
    const asked = changes();
    answer.replaceChildren(...await previewed(model, asked, await model.source.ask("preview", asked)));
  });
  const apply = () => step(async () => changed("The edit is applied.", await model.source.ask("apply", changes())));
  const undo = () => step(async () => changed("The edit is undone.", await model.source.ask("undo")));
  return [
    h("div", { class: "row" }, h("button", { class: "primary", id: id("preview"), onclick: preview }, "Preview"), h("button", { id: id("apply"), onclick: apply }, "Apply"), h("button", { id: id("undo"), onclick: undo }, `Undo (${model.about.edits})`)),
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
      ...deciding(model, () => ({ thresholds: { [k()]: Number(value.value) } }), answer, (name) => `${name}-threshold`), model.about.shape ? null : saveButton(model)), answer)];
}

function thresholdsAlone(model) {
  const none = h("p", {}, "The layer's vectors are no images, so there is nothing to draw on, and its features have no thresholds. On Why they can be switched off.");
  return [h("h1", {}, "Edit"), h("p", { class: "lead" }, "The vectors of this layer are no images to draw on."), ...(model.about.offers.thresholds ? thresholds(model) : [none, saving(model)])];
}

function saving(model) {
  return model.about.offers.save ? h("section", { class: "card" }, saveButton(model)) : null;
}

// The network as it is now, as a file that Python loads; the browser downloads it.
function saveButton(model) {
  return h("button", { id: "save", onclick: async () => {
    try {
      download(await model.source.save(), "edited.safetensors");
      say("The network is saved as edited.safetensors, among your downloads.");
    } catch (error) { say(error.message); }
  } }, "Save the network");
}
