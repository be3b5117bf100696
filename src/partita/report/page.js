"use strict";

// ---- Data: stored by column on the page, compressed; used by row ----------------------------------------------------
const read = (id) => JSON.parse(document.getElementById(id).textContent);
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
const decoded = (column) => (Array.isArray(column) ? column : column.indices.map((index) => column.texts[index]));
const rowsOf = (columns) => {
  const names = Object.keys(columns);
  const values = names.map((name) => decoded(columns[name]));
  return names.length ? values[0].map((_, i) => Object.fromEntries(names.map((name, n) => [name, values[n][i]]))) : [];
};
const data = Object.fromEntries(Object.entries(await unpacked("data")).map(([name, columns]) => [name, rowsOf(columns)]));
const charts = read("charts");

// ---- Charts: scaled to the width of the page, in its colors --------------------------------------------------------------
const palettes = read("palettes");
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function themed(width) {
  const style = getComputedStyle(document.documentElement);
  const [text, muted, line] = ["--text", "--muted", "--line"].map((name) => style.getPropertyValue(name).trim());
  const labels = { labelColor: muted, titleColor: text };
  const palette = dark.matches ? palettes.dark : palettes.light;
  return {
    aria: false,
    background: null,
    font: "system-ui, sans-serif",
    axis: { ...labels, gridColor: line, domainColor: muted, tickColor: muted },
    legend: { ...labels, symbolBaseFillColor: muted, symbolBaseStrokeColor: muted, orient: "bottom", labelLimit: 250, columns: Math.max(1, Math.floor(width / 220)) },
    header: labels,
    title: { color: text },
    view: { stroke: line },
    rule: { color: muted },
    tick: { color: muted },
    text: { color: text },
    mark: { color: palette.category[0] },
    range: palette,
  };
}

// Below this share of their designed width, small multiples are stacked; if there are many, each is lower.
const NARROW = 0.6;
const MANY = 3;

function scaled(spec, factor, low = 1) {
  if (Array.isArray(spec)) return spec.map((part) => scaled(part, factor, low));
  if (spec === null || typeof spec !== "object") return spec;
  const isStacked = typeof spec.columns === "number" && factor < NARROW;
  const columns = isStacked ? Math.ceil(spec.columns / MANY) : spec.columns;
  const inner = isStacked ? Math.min(1, (factor * spec.columns) / columns) : factor;
  const height = isStacked && spec.columns >= MANY ? NARROW : low;
  const scaledSpec = Object.fromEntries(Object.entries(spec).map(([key, part]) => [key, scaled(part, inner, height)]));
  if (isStacked) scaledSpec.columns = columns;
  if (typeof scaledSpec.width === "number") scaledSpec.width = Math.max(40, Math.floor(scaledSpec.width * factor));
  if (typeof scaledSpec.height === "number") scaledSpec.height = Math.floor(scaledSpec.height * low);
  return scaledSpec;
}

const AXES = 90;
const DESIGNED = 910;
const WIDEST = 1.3;
// Below this width, a chart that has a specification for narrow pages is drawn from it.
const NARROW_PAGE = 760;
// With more rows than this, charts are drawn on a canvas: SVG elements would be too many.
const MANY_ROWS = 5000;
const renderer = data.devices.length > MANY_ROWS ? "canvas" : "svg";
const views = new Map();

async function embed(place, factor) {
  const { wide, narrow } = charts[place.dataset.chart];
  const spec = scaled((place.clientWidth < NARROW_PAGE && narrow) || wide, factor);
  spec.datasets = data;
  views.get(place)?.finalize();
  views.set(place, await window.vegaEmbed(place, spec, { renderer, actions: false, config: themed(place.clientWidth) }));
  return place.querySelector("svg, canvas").getBoundingClientRect().width;
}

// A chart that is wider than the page, because of its labels, is drawn again with a smaller factor.
async function draw(place) {
  const selected = [...place.querySelectorAll("select")].map((menu) => menu.selectedIndex);
  const room = place.clientWidth;
  let factor = Math.min(WIDEST, (room - AXES) / (DESIGNED - AXES));
  let width = await embed(place, factor);
  for (let tries = 0; width > room && tries < 3; tries += 1) {
    factor -= (width - room + 2) / (DESIGNED - AXES) * 1.5;
    width = await embed(place, factor);
  }
  const image = place.querySelector("svg, canvas");
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", place.dataset.caption);
  [...place.querySelectorAll("select")].forEach((menu, index) => {
    if (!selected[index]) return;
    menu.selectedIndex = selected[index];
    menu.dispatchEvent(new Event("change"));
  });
}

// One after the other, so that the first chart appears first and the page stays responsive.
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
const { split, change } = table.dataset;
// Of many models, the table has only some, and no column of their changes.
const listed = JSON.parse(table.dataset.listed);
const models = [...new Set(data.devices.map((row) => row.model))].filter((model, place) => !listed.length || !place || listed.includes(model));
function grouped(rows) {
  const found = new Map();
  for (const row of rows) {
    if (!found.has(row.device)) found.set(row.device, []);
    found.get(row.device).push(row);
  }
  return found;
}
// Devices that training has not seen are marked: unseen ones of the run, and those that joined later.
const later = { unseen: "Unseen in training.", onboarded: "Joined after training." };
const marks = new Map(Object.keys(later).flatMap((kind) => (data[kind] ?? []).map((row) => [row.device, kind])));
const byDevice = grouped([...data.devices, ...(data.unseen ?? []), ...(data.onboarded ?? [])]);
const visits = grouped(data.visits ?? []);
const columns = [
  { title: "device", of: (rows) => rows[0].device, text: String },
  { title: "training examples", of: (rows) => rows[0].examples, text: (value) => value ?? "-", number: true },
];
models.forEach((model, place) => {
  const own = (rows) => rows.find((row) => row.model === model && row.split === split);
  columns.push({ title: model, of: (rows) => own(rows)?.metric ?? null, text: number, number: true });
  if (place && !listed.length) columns.push({ title: `${change}, ${model}`, of: (rows) => own(rows)?.change ?? null, text: signed, number: true });
});

const state = { column: 0, descending: false, query: "" };

function compare(a, b) {
  const [x, y] = [a, b].map((rows) => columns[state.column].of(rows));
  if (x === null || y === null) return (x === null) - (y === null);
  const order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
  return state.descending ? -order : order;
}

const lines = new Map([...byDevice.values()].map((rows) => [rows, element("tr", {}, ...columns.map((column, place) => {
  if (place) return element("td", { class: "number" }, column.text(column.of(rows)));
  const kind = marks.get(rows[0].device);
  const mark = kind ? [element("span", { class: "mark" }, kind)] : [];
  const button = element("button", { type: "button" }, rows[0].device, ...mark);
  button.addEventListener("click", () => show(rows, button));
  return element("th", { scope: "row" }, button);
}))]));

function fill() {
  const query = state.query.toLowerCase();
  const shown = [...byDevice.values()].filter((rows) => rows[0].device.toLowerCase().includes(query)).sort(compare);
  table.tBodies[0].replaceChildren(...shown.map((rows) => lines.get(rows)));
  document.getElementById("found").textContent = `${shown.length} of ${byDevice.size} devices`;
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    cell.setAttribute("aria-sort", place === state.column ? (state.descending ? "descending" : "ascending") : "none");
  });
}

const detailColumns = [
  { title: "metric", of: (row) => row.metric, text: number },
  { title: change, of: (row) => row.change, text: signed },
  { title: "lowest seed", of: (row) => (row.seeds > 1 ? row.low : null), text: signed },
  { title: "highest seed", of: (row) => (row.seeds > 1 ? row.high : null), text: signed },
  { title: "seeds", of: (row) => row.seeds ?? null, text: String },
  { title: "loss", of: (row) => row.loss ?? null, text: number },
  { title: "reason for a missing metric", of: (row) => row.reason ?? null, text: (value) => value ?? "" },
];

function times(visit) {
  const count = (number) => `${number} time${number === 1 ? "" : "s"}`;
  const others = visit.left_out ?? 0;
  const missed = visit.asked === visit.replied + others ? "" : `, replied ${count(visit.replied + others)}`;
  const unused = others ? `, not needed ${count(others)}` : "";
  return `${visit.stage}: selected ${count(visit.asked)}${missed}${unused}${visit.failed ? ` (${visit.failed})` : ""}`;
}

function show(rows, opener) {
  const place = document.getElementById("details");
  const own = detailColumns.filter((detail) => rows.some((row) => detail.of(row) !== null));
  const titles = ["model", "split", ...own.map((detail) => detail.title)];
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
    element("h3", { tabindex: "-1", id: "details-title" }, rows[0].device), close,
    ...(marks.has(rows[0].device) ? [element("p", {}, later[marks.get(rows[0].device)])] : []),
    element("p", {}, rows[0].examples === null ? "Number of training examples unknown." : `${rows[0].examples} training examples.`),
    ...(asked.length ? [element("ul", {}, ...asked)] : []),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Details of ${rows[0].device}` },
      element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))));
  place.hidden = false;
  place.querySelector("h3").focus();
}

function start() {
  const head = columns.map((column, place) => {
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      state.descending = state.column === place ? !state.descending : false;
      state.column = place;
      fill();
    });
    return element("th", { scope: "col", class: column.number ? "number" : "" }, button);
  });
  table.tHead.append(element("tr", {}, ...head));
  document.getElementById("search").addEventListener("input", (event) => {
    state.query = event.target.value.trim();
    fill();
  });
  fill();
}

start();
drawAll();
dark.addEventListener("change", drawAll);
let timer = 0;
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  clearTimeout(timer);
  timer = setTimeout(drawAll, 200);
});
