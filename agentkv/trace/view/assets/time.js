// What part of time is shown, and how things are drawn.
const GUTTER = 150;
const view = { from: 0, to: 1, width: 1, theme: {}, selected: null, step: -1, matches: new Set() };

const x = (ms) => GUTTER + ((ms - view.from) / (view.to - view.from)) * (view.width - GUTTER);
const ms = (px) => view.from + ((px - GUTTER) / (view.width - GUTTER)) * (view.to - view.from);

function show(from, to) {
  const least = 0.01, span = Math.min(Math.max(to - from, least), data.end * 1.04);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - span / 2, -data.end * 0.02), data.end * 1.02 - span);
  view.to = view.from + span;
  draw();
}
const zoom = (factor, at = (view.from + view.to) / 2) =>
  show(at - (at - view.from) * factor, at + (view.to - at) * factor);
const move = (part) => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
const fit = () => show(-data.end * 0.02, data.end * 1.02);

// Brings a moment into view, and keeps the zoom where it can.
function goTo(at, span = view.to - view.from) {
  show(at - span / 2, at + span / 2);
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["back", "panel", "line", "text", "soft", "accent", "extend", "generate", "select", "logits", "call",
    "bad", "prefill", "decode", "again", "accepted", "rejected", "used", "shared", "retained", "bytes", "turn", "mark"]) {
    view.theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

// A canvas in device pixels, ready to be drawn to in CSS pixels.
function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return pen;
}

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    const start = performance.now();
    view.width = document.getElementById("rows").clientWidth;
    drawRuler();
    drawRows();
    drawCells();
    drawLanes();
    view.drew = performance.now() - start;
    view.slowest = Math.max(view.slowest || 0, view.drew);
  });
}

function timeText(at, span = at) {
  if (span < 1) return `${(at * 1000).toFixed(0)} \u00b5s`;
  if (span < 1000) return `${at.toFixed(span < 10 ? 2 : 1)} ms`;
  if (span < 120000) return `${(at / 1000).toFixed(span < 10000 ? 3 : 2)} s`;
  return `${(at / 60000).toFixed(2)} min`;
}

function ticks() {
  const span = view.to - view.from, rough = span / Math.max(2, (view.width - GUTTER) / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(Math.max(view.from, 0) / step) * step; at <= view.to; at += step) found.push(at);
  return found;
}

function drawRuler() {
  const pen = prepared(document.getElementById("ruler"), 24), span = view.to - view.from;
  pen.fillStyle = view.theme.soft;
  for (const at of ticks()) {
    pen.fillRect(Math.round(x(at)), 17, 1, 7);
    pen.fillText(timeText(at, span), x(at) + 4, 12);
  }
}

function grid(pen, height) {
  pen.fillStyle = view.theme.line;
  for (const at of ticks()) pen.fillRect(Math.round(x(at)), 0, 1, height);
}

const shortNumber = (n) => (n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : n >= 1e4 ? `${(n / 1e3).toFixed(0)}k` : String(Math.round(n)));
const bytesText = (n) => (n < 1 << 20 ? `${(n / 1024).toFixed(0)} KiB` : n < 1 << 30 ? `${(n / (1 << 20)).toFixed(1)} MiB` : `${(n / (1 << 30)).toFixed(2)} GiB`);
