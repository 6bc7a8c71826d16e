// Columns of a table: the values that an example has in them, and how they go with a feature.

import { descending } from "./arithmetic.js";
import { columnsOf } from "./model.js";
import { barRow, h, signed, whole, wideCard } from "./parts.js";

// Values of an example that are shown, and digits of those that are no whole numbers.
const MOST = 12, DIGITS = 6;

// A whole number with all its digits, another one with six or with two behind the point; nothing for a missing one.
export function inDigits(value) {
  if (Number.isNaN(value)) return "";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  const before = Math.floor(Math.log10(Math.abs(value))) + 1, digits = Math.min(15, Math.max(DIGITS, before + 2));
  return String(Number.isInteger(value) ? value : Number(value.toPrecision(digits))).replaceAll("-", "−");
}

function valueOf(model, i, j) {
  const value = model.data.values.at(i, j), texts = model.about.table.texts[j];
  return texts ? texts[value] ?? "" : inDigits(value);
}

// Standard deviations from the mean, NaN for texts, and for what is missing or the same in all.
function distanceOf(model, i, j) {
  const [mean, deviation] = model.data.spread.row(j);
  return deviation > 0 && !model.about.table.texts[j] ? (model.data.values.at(i, j) - mean) / deviation : NaN;
}

// The values of an example: all, or those that are farthest from the mean.
export function valuesOf(model, i) {
  if (!model.data.values) return null;
  const { columns } = model.about.table, all = columns.map((_, j) => j), few = columns.length <= MOST;
  const distances = all.map((j) => distanceOf(model, i, j));
  const shown = few ? all : descending(distances.map((z) => (Number.isNaN(z) ? -1 : Math.abs(z)))).slice(0, MOST);
  const row = (j) => h("tr", {}, h("th", { scope: "row" }, columns[j]), h("td", { class: model.about.table.texts[j] ? "right text" : "right" }, valueOf(model, i, j)),
    few ? null : h("td", { class: "right soft" }, Number.isNaN(distances[j]) ? "" : signed(distances[j], 1)));
  return [
    h("h2", {}, "Values"),
    few ? null : h("p", { class: "soft", id: "farthest" }, `${MOST} of ${whole(columns.length)} columns, farthest from the mean; beside each, by how many standard deviations.`),
    h("table", { id: "values" }, h("tbody", {}, shown.map(row))),
  ];
}

// The columns whose values rise or fall with the measure of a feature.
export function columnsCard(model, k) {
  if (!model.data.columns?.columns) return null;
  const found = columnsOf(model, k), scale = { low: -1, high: 1 };
  const row = ({ name, value }) => barRow([h("span", { title: name }, name)], 0, value, scale, "plain", signed(value, 2));
  return wideCard("Columns that go with it",
    found.length ? h("div", { class: "bars long", id: "columns" }, found.flatMap(row)) : h("p", { class: "soft" }, "None: its measure is the same in all examples, or the columns are."),
    h("p", { class: "soft" }, `Correlations of its measure with the columns, over all ${whole(model.about.objects)} examples${model.about.table.gaps ? " that have a value" : ""}. Above 0 they rise together; below 0 one falls where the other rises.`));
}
