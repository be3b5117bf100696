"use strict";

// ---- Data: columns on the page, rows in memory ----------------------------------------------------------------
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const whole = (column) => (Array.isArray(column) ? column : column.at.map((place) => column.texts[place]));
const rowsOf = (columns) => {
  const names = Object.keys(columns);
  const values = names.map((name) => whole(columns[name]));
  return names.length ? values[0].map((_, i) => Object.fromEntries(names.map((name, n) => [name, values[n][i]]))) : [];
};
const data = Object.fromEntries(Object.entries(read("data")).map(([name, columns]) => [name, rowsOf(columns)]));
const charts = read("charts");

// ---- Charts: as wide as the page, in its colors --------------------------------------------------------------
const palettes = read("palettes");
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function themed(width) {
  const style = getComputedStyle(document.documentElement);
  const [ink, faint, line] = ["--ink", "--faint", "--line"].map((name) => style.getPropertyValue(name).trim());
  const texts = { labelColor: faint, titleColor: ink };
  const palette = dark.matches ? palettes.dark : palettes.light;
  return {
    aria: false,
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

// Below this share of their width, fewer charts stand beside each other; where they are many, each is lower.
const NARROW = 0.6;
const MANY = 3;

function narrowed(spec, factor, low = 1) {
  if (Array.isArray(spec)) return spec.map((part) => narrowed(part, factor, low));
  if (spec === null || typeof spec !== "object") return spec;
  const isStacked = typeof spec.columns === "number" && factor < NARROW;
  const beside = isStacked ? Math.ceil(spec.columns / MANY) : spec.columns;
  const inner = isStacked ? Math.min(1, (factor * spec.columns) / beside) : factor;
  const height = isStacked && spec.columns >= MANY ? NARROW : low;
  const made = Object.fromEntries(Object.entries(spec).map(([key, part]) => [key, narrowed(part, inner, height)]));
  if (isStacked) made.columns = beside;
  if (typeof made.width === "number") made.width = Math.max(40, Math.floor(made.width * factor));
  if (typeof made.height === "number") made.height = Math.floor(made.height * low);
  return made;
}

const AXES = 90;
const DESIGNED = 910;
// Above so many rows, points are pixels and not elements of the page.
const MANY_ROWS = 5000;
const renderer = data.devices.length > MANY_ROWS ? "canvas" : "svg";
const views = new Map();

async function draw(place) {
  const factor = Math.min(1, (place.clientWidth - AXES) / (DESIGNED - AXES));
  const spec = narrowed(charts[place.dataset.chart], factor);
  spec.datasets = data;
  const picked = [...place.querySelectorAll("select")].map((choice) => choice.selectedIndex);
  views.get(place)?.finalize();
  views.set(place, await window.vegaEmbed(place, spec, { renderer, actions: false, config: themed(place.clientWidth) }));
  const picture = place.querySelector("svg, canvas");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", place.dataset.says);
  [...place.querySelectorAll("select")].forEach((choice, at) => {
    if (!picked[at]) return;
    choice.selectedIndex = picked[at];
    choice.dispatchEvent(new Event("change"));
  });
}

// One after the other, so that what stands first is seen first and the page answers in between.
let drawing = 0;
async function drawAll() {
  drawing += 1;
  const own = drawing;
  for (const place of document.querySelectorAll(".chart")) {
    if (own !== drawing) return;
    await draw(place);
    await new Promise((done) => setTimeout(done));
  }
  document.body.dataset.drawn = "all";
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

const table = document.getElementById("devices");
const { split: judged, gained } = table.dataset;
const models = [...new Set(data.devices.map((row) => row.model))];
function grouped(rows) {
  const found = new Map();
  for (const row of rows) {
    if (!found.has(row.device)) found.set(row.device, []);
    found.get(row.device).push(row);
  }
  return found;
}
const byDevice = grouped(data.devices);
const visits = grouped(data.visits ?? []);
const columns = [
  { title: "device", of: (rows) => rows[0].device, text: String },
  { title: "training examples", of: (rows) => rows[0].examples, text: (value) => value ?? "-", number: true },
];
models.forEach((model, place) => {
  const own = (rows) => rows.find((row) => row.model === model && row.split === judged);
  columns.push({ title: model, of: (rows) => own(rows)?.metric ?? null, text: number, number: true });
  if (place) columns.push({ title: `${gained}, ${model}`, of: (rows) => own(rows)?.gain ?? null, text: signed, number: true });
});

const state = { column: 0, down: false, words: "" };

function compare(a, b) {
  const [x, y] = [a, b].map((rows) => columns[state.column].of(rows));
  if (x === null || y === null) return (x === null) - (y === null);
  const order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
  return state.down ? -order : order;
}

const lines = new Map([...byDevice.values()].map((rows) => [rows, element("tr", {}, ...columns.map((column, place) => {
  if (place) return element("td", { class: "number" }, column.text(column.of(rows)));
  const button = element("button", { type: "button" }, rows[0].device);
  button.addEventListener("click", () => show(rows, button));
  return element("th", { scope: "row" }, button);
}))]));

function fill() {
  const words = state.words.toLowerCase();
  const shown = [...byDevice.values()].filter((rows) => rows[0].device.toLowerCase().includes(words)).sort(compare);
  table.tBodies[0].replaceChildren(...shown.map((rows) => lines.get(rows)));
  document.getElementById("found").textContent = `${shown.length} of ${byDevice.size} devices`;
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    cell.setAttribute("aria-sort", place === state.column ? (state.down ? "descending" : "ascending") : "none");
  });
}

const details = [
  { title: "metric", of: (row) => row.metric, text: number },
  { title: gained, of: (row) => row.gain, text: signed },
  { title: "least of any seed", of: (row) => (row.seeds > 1 ? row.low : null), text: signed },
  { title: "most of any seed", of: (row) => (row.seeds > 1 ? row.high : null), text: signed },
  { title: "seeds", of: (row) => row.seeds ?? null, text: String },
  { title: "loss", of: (row) => row.loss ?? null, text: number },
  { title: "why there is no metric", of: (row) => row.reason ?? null, text: (value) => value ?? "" },
];

function times(visit) {
  const count = (number) => `${number} time${number === 1 ? "" : "s"}`;
  const missed = visit.asked === visit.heard ? "" : `, heard of ${count(visit.heard)}`;
  return `${visit.stage}: asked ${count(visit.asked)}${missed}${visit.failed ? ` (${visit.failed})` : ""}`;
}

function show(rows, opener) {
  const place = document.getElementById("one");
  const own = details.filter((detail) => rows.some((row) => detail.of(row) !== null));
  const titles = ["model", "rows", ...own.map((detail) => detail.title)];
  const head = element("tr", {}, ...titles.map((title, at) => element("th", { scope: "col", class: at > 1 ? "number" : "" }, title)));
  const body = rows.map((row) => element("tr", {},
    element("th", { scope: "row" }, row.model), element("td", {}, row.split),
    ...own.map((detail) => element("td", { class: "number" }, detail.text(detail.of(row))))));
  const asked = (visits.get(rows[0].device) ?? []).map((visit) => element("li", {}, times(visit)));
  const close = element("button", { type: "button", class: "close" }, "Close");
  const hide = () => {
    place.hidden = true;
    (opener.isConnected ? opener : document.getElementById("search")).focus();
  };
  close.addEventListener("click", hide);
  place.onkeydown = (event) => { if (event.key === "Escape") hide(); };
  place.replaceChildren(
    element("h3", { tabindex: "-1", id: "one-title" }, rows[0].device), close,
    element("p", {}, `${rows[0].examples ?? "Unknown"} training examples.`),
    ...(asked.length ? [element("ul", {}, ...asked)] : []),
    element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `All about ${rows[0].device}` },
      element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))));
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
drawAll();
dark.addEventListener("change", drawAll);
let waiting = 0;
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(drawAll, 200);
});
