"use strict";

// ---- Data: columns on the page, rows in memory ----------------------------------------------------------------
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const rowsOf = (columns) => {
  const names = Object.keys(columns);
  return names.length ? columns[names[0]].map((_, i) => Object.fromEntries(names.map((n) => [n, columns[n][i]]))) : [];
};
const data = Object.fromEntries(Object.entries(read("data")).map(([name, columns]) => [name, rowsOf(columns)]));
const charts = read("charts");

// ---- Charts: as wide as the page, in its colours --------------------------------------------------------------
const palettes = read("palettes");
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function themed(width) {
  const style = getComputedStyle(document.documentElement);
  const [ink, faint, line] = ["--ink", "--faint", "--line"].map((name) => style.getPropertyValue(name).trim());
  const texts = { labelColor: faint, titleColor: ink };
  const palette = dark.matches ? palettes.dark : palettes.light;
  return {
    background: null,
    font: "system-ui, sans-serif",
    axis: { ...texts, gridColor: line, domainColor: faint, tickColor: faint },
    legend: { ...texts, symbolBaseFillColor: faint, symbolBaseStrokeColor: faint, orient: "bottom", labelLimit: 170, columns: Math.max(1, Math.floor(width / 190)) },
    header: texts,
    title: { color: ink },
    view: { stroke: line },
    rule: { color: faint },
    text: { color: ink },
    mark: { color: palette[0] },
    range: { category: palette },
  };
}

// Below this share of their width, charts that stand beside each other stand below each other.
const NARROW = 0.6;

function narrowed(spec, factor) {
  if (Array.isArray(spec)) return spec.map((part) => narrowed(part, factor));
  if (spec === null || typeof spec !== "object") return spec;
  const isStacked = typeof spec.columns === "number" && factor < NARROW;
  const inner = isStacked ? Math.min(1, factor * spec.columns) : factor;
  const made = Object.fromEntries(Object.entries(spec).map(([key, part]) => [key, narrowed(part, inner)]));
  if (isStacked) made.columns = 1;
  if (typeof made.width === "number") made.width = Math.max(40, Math.floor(made.width * factor));
  return made;
}

const AXES = 90;
const DESIGNED = 910;

async function draw(place) {
  const factor = Math.min(1, (place.clientWidth - AXES) / (DESIGNED - AXES));
  const spec = narrowed(charts[place.dataset.chart], factor);
  spec.datasets = data;
  await window.vegaEmbed(place, spec, { renderer: "svg", actions: false, config: themed(place.clientWidth) });
}

function drawAll() {
  return Promise.all([...document.querySelectorAll(".chart")].map(draw));
}

// ---- The table of devices -------------------------------------------------------------------------------------
const number = (value) => (value === null ? "-" : Math.abs(value) < 1000 ? value.toFixed(4) : value.toPrecision(4));
const signed = (value) => (value === null ? "-" : (value > 0 ? "+" : "") + value.toFixed(4));
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

const judged = document.getElementById("devices").dataset.split;
const models = [...new Set(data.devices.map((row) => row.model))];
const byDevice = new Map();
for (const row of data.devices) {
  if (!byDevice.has(row.device)) byDevice.set(row.device, []);
  byDevice.get(row.device).push(row);
}
const columns = [
  { title: "device", of: (rows) => rows[0].device, text: String },
  { title: "training examples", of: (rows) => rows[0].examples, text: (value) => value ?? "-", number: true },
];
models.forEach((model, place) => {
  const own = (rows) => rows.find((row) => row.model === model && row.split === judged);
  columns.push({ title: model, of: (rows) => own(rows)?.metric ?? null, text: number, number: true });
  if (place) columns.push({ title: `change, ${model}`, of: (rows) => own(rows)?.gain ?? null, text: signed, number: true });
});

const table = document.getElementById("devices");
const state = { column: 0, down: false, words: "" };

function compare(a, b) {
  const [x, y] = [a, b].map((rows) => columns[state.column].of(rows));
  if (x === null || y === null) return (x === null) - (y === null);
  const order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
  return state.down ? -order : order;
}

function fill() {
  const words = state.words.toLowerCase();
  const shown = [...byDevice.values()].filter((rows) => rows[0].device.toLowerCase().includes(words)).sort(compare);
  table.tBodies[0].replaceChildren(...shown.map((rows) => element("tr", {}, ...columns.map((column, place) => {
    if (place) return element("td", { class: "number" }, column.text(column.of(rows)));
    const button = element("button", { type: "button" }, rows[0].device);
    button.addEventListener("click", () => show(rows));
    return element("th", { scope: "row" }, button);
  }))));
  document.getElementById("found").textContent = `${shown.length} of ${byDevice.size} devices`;
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    cell.setAttribute("aria-sort", place === state.column ? (state.down ? "descending" : "ascending") : "none");
  });
}

function show(rows) {
  const place = document.getElementById("one");
  const titles = ["model", "split", "metric", "change", "loss"];
  const head = element("tr", {}, ...titles.map((title, at) => element("th", { scope: "col", class: at > 1 ? "number" : "" }, title)));
  const body = rows.map((row) => element("tr", {},
    element("th", { scope: "row" }, row.model), element("td", {}, row.split),
    ...[number(row.metric), signed(row.gain), number(row.loss ?? null)].map((text) => element("td", { class: "number" }, text))));
  place.replaceChildren(
    element("h3", { tabindex: "-1" }, rows[0].device),
    element("p", {}, `${rows[0].examples} training examples.`),
    element("div", { class: "wide" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))));
  place.hidden = false;
  place.querySelector("h3").focus();
}

function begin() {
  const head = columns.map((column, place) => {
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      state.down = state.column === place ? !state.down : false;
      state.column = place;
      fill();
    });
    return element("th", { scope: "col", class: column.number ? "number" : "" }, button);
  });
  table.tHead.append(element("tr", {}, ...head));
  document.getElementById("search").addEventListener("input", (event) => {
    state.words = event.target.value.trim();
    fill();
  });
  fill();
}

begin();
drawAll().then(() => { document.body.dataset.drawn = "all"; });
dark.addEventListener("change", drawAll);
let waiting = 0;
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(drawAll, 200);
});
