// What an edit would do: accuracy by class, and the answers that flip.

import { className, exampleName, isHeld } from "./model.js";
import { card, exampleTile, h, percent, strip, thumb, whole, wideCard } from "./parts.js";

// Flips of each kind that are shown.
const SHOWN = 40;

// Cards with what the server found, for an edit that was asked about.
export async function previewed(model, asked, seen) {
  const change = (before, after) => `${after >= before ? "+" : "−"}${Math.abs(100 * (after - before)).toFixed(2)}`;
  const row = (name, before, after) => h("tr", {}, h("th", { scope: "row" }, name), [percent(before), percent(after), change(before, after)].map((text) => h("td", { class: "right" }, text)));
  const body = [row("all", ...seen.all), ...seen.classes.map(([label, before, after]) => row(className(model, label), before, after))];
  const kinds = [["Repaired", ([, , after, label]) => after === label], ["Broken", ([, before, , label]) => before === label], ["Wrong before and after", ([, before, after, label]) => before !== label && after !== label]];
  const found = kinds.map(([name, of]) => [name, seen.flips.filter(of)]).filter(([, flips]) => flips.length);
  const pictures = await picturesOf(model, found.flatMap(([, flips]) => flips.slice(0, SHOWN).map(([i]) => i)));
  const tile = ([i, before, after, label]) => {
    const caption = `${className(model, before)} → ${className(model, after)}`;
    if (isHeld(model, i)) return exampleTile(model, i, { caption });
    return h("span", { class: `tile${before === label ? "" : " wrong"}` }, pictures(i) ?? h("span", {}, exampleName(model, i)), h("span", { class: "caption" }, caption));
  };
  return [
    card("Accuracy", h("p", { class: "verdict", id: "outcome" }, `${whole(seen.flips.length)} answers flip: ${whole(seen.repaired)} repaired, ${whole(seen.broken)} broken`),
      h("p", { id: "balance" }, balance(model, asked, seen)),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Accuracy by class" }, h("table", {}, h("thead", {}, h("tr", {}, ["class", "before", "after", "change"].map((name, i) => h("th", { class: i ? "right" : "" }, name)))), h("tbody", {}, body)))),
    ...found.map(([name, flips]) => wideCard(`${name}: ${whole(flips.length)}${flips.length > SHOWN ? `, the first ${SHOWN}` : ""}`, strip(flips.slice(0, SHOWN).map(tile)))),
  ];
}

// What it does to the classes drawn on, and what it costs the others: repairs of some are often errors of others.
function balance(model, asked, seen) {
  const mine = new Set(Object.keys(asked.prototypes ?? {}).map(Number)), counts = new Map(seen.counts);
  const share = (of, at) => {
    const chosen = seen.classes.filter(([label]) => mine.has(label) === of), all = chosen.reduce((n, [label]) => n + counts.get(label), 0);
    return all ? chosen.reduce((sum, c) => sum + c[at] * counts.get(c[0]), 0) / all : null;
  };
  const told = (of) => `${percent(share(of, 1), 2)} → ${percent(share(of, 2), 2)}`;
  const net = seen.repaired <= seen.broken && seen.flips.length ? "It breaks at least as many as it repairs. " : "";
  const parts = mine.size && share(true, 1) !== null && share(false, 1) !== null ? `${[...mine].map((p) => className(model, p)).join(", ")}: ${told(true)}; all others: ${told(false)}. ` : "";
  return `${net}${parts}These ${whole(seen.counts.reduce((n, [, count]) => n + count, 0))} examples are those that you choose by: on others it will help less.`;
}

// Pictures of examples that the page does not hold, from the server: a function of an index.
async function picturesOf(model, indices) {
  const missing = indices.filter((i) => !isHeld(model, i));
  if (!missing.length) return () => null;
  const { sprite } = await model.source.ask("pictures", { indices: missing });
  if (!sprite) return () => null;
  const url = `data:image/png;base64,${sprite.png}`;
  return (i) => thumb({ ...sprite, url }, missing.indexOf(i), 56, exampleName(model, i));
}
