// Buttons, keys and the pointer.
const errors = [];
window.addEventListener("error", (event) => tell(event.message));
window.addEventListener("unhandledrejection", (event) => tell(String(event.reason)));

function tell(message) {
  errors.push(message);
  document.documentElement.dataset.errors = String(errors.length);
  warn(`Something in this page went wrong: ${message}`);
}

function warn(text) {
  const warning = document.getElementById("warning");
  warning.textContent = text;
  warning.hidden = false;
}

function legend() {
  const of = (names) => names.map(([name, text]) => {
    const square = element("i");
    square.style.background = view.theme[name];
    return element("span", {}, square, text);
  });
  const drafted = data.sums.accepted.at(-1) + data.sums.rejected.at(-1) > 0;
  document.getElementById("legend").replaceChildren(...of([
    ["prefill", "prompt rows, extend"], ["generate", "generate, decode rows"], ["again", "fed again, rollback"],
    ...(drafted ? [["accepted", "accepted drafts"], ["rejected", "rejected drafts"]] : []),
    ["select", "select"], ["call", "tool call"], ["bad", "failed"], ["turn", "agent's turn"], ["mark", "note"],
    ["used", "cells used"], ["shared", "shared"], ["retained", "and retained"], ["bytes", "bytes of K and V"],
  ]));
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  readTheme();
  legend();
  draw();
}

function hover(event, text) {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}

function stepText(step) {
  const a = data.arrays;
  const kinds = [["prompt rows", a.step_prefill[step]], ["to decode", a.step_decode[step]], ["fed again", a.step_again[step]]];
  const rows = kinds.filter(([, n]) => n).map(([name, n]) => `${n} ${name}`).join(", ");
  const drafts = a.step_drafted[step] ? `\n${a.step_accepted[step]} of ${a.step_drafted[step]} drafts came true` : "";
  return `step ${step + 1}, ${timeText(a.step_took[step])}\n${rows}${drafts}`;
}

function laneText(hit) {
  if (!hit) return "";
  const a = data.arrays;
  if (hit.call !== undefined) {
    const call = data.facts.calls[hit.call];
    return `${call.name}, ${call.status || "running"}, ${timeText(endOf(call.end) - call.at)}\n${call.content.slice(0, 200)}`;
  }
  if (hit.job === undefined) return hit.name ? "" : `branch ${hit.branch} at ${timeText(hit.at, data.end)}`;
  const took = endOf(a.job_end[hit.job]) - a.job_at[hit.job], tokens = a.job_tokens[hit.job];
  return `${word(a.job_kind[hit.job])} on branch ${hit.branch}, ${timeText(took)}\n${tokens} tokens, ${word(a.job_error[hit.job]) || word(a.job_reason[hit.job])}`;
}

function pointer(canvas, onClick, onHover) {
  let from = null, moved = false;
  const inside = (event) => [event.clientX - canvas.getBoundingClientRect().left, event.clientY - canvas.getBoundingClientRect().top];
  canvas.addEventListener("pointerdown", (event) => {
    from = { x: event.clientX, y: event.clientY, at: view.from, to: view.to, top: lanes.box.scrollTop };
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!from) return hover(event, onHover(...inside(event)));
    moved ||= Math.abs(event.clientX - from.x) + Math.abs(event.clientY - from.y) > 4;
    if (!moved) return;
    const shift = ((from.x - event.clientX) / (view.width - GUTTER)) * (from.to - from.at);
    if (canvas === lanes.canvas) lanes.box.scrollTop = from.top + from.y - event.clientY;
    show(from.at + shift, from.to + shift);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (from && !moved) onClick(...inside(event));
    from = null;
  });
  canvas.addEventListener("pointerleave", (event) => hover(event, ""));
  canvas.addEventListener("wheel", (event) => {
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 1000);
    else if (canvas !== lanes.canvas || event.ctrlKey || event.metaKey) zoom(1.0015 ** event.deltaY, ms(inside(event)[0]));
    else return;
    event.preventDefault();
  }, { passive: false });
}

function clickLane(px, py) {
  const hit = laneAt(px, py);
  if (!hit) return select(null);
  if (hit.fold && data.branches.get(hit.branch).children.length) {
    const branch = data.branches.get(hit.branch);
    branch.folded = !branch.folded;
    relay();
  } else select(hit);
}

function relay() {
  layOut(document.getElementById("copies").getAttribute("aria-pressed") === "true");
  draw();
}

function toggleCopies() {
  const button = document.getElementById("copies");
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  relay();
}

function toggleAlive() {
  lanes.alive = !lanes.alive;
  document.getElementById("alive").setAttribute("aria-pressed", String(lanes.alive));
  relay();
}

function step(by) {
  const lane = data.branches.get(view.selected?.branch)?.lane ?? -1;
  const branch = data.lanes[Math.min(Math.max(lane + by, 0), data.lanes.length - 1)];
  if (!branch) return;
  select({ branch: branch.id, at: data.end });
  reveal(branch);
}

const toggleTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
const help = () => document.getElementById("help").showModal();
const KEYS = {
  ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15),
  ArrowUp: () => { lanes.box.scrollTop -= LANE * 3; }, ArrowDown: () => { lanes.box.scrollTop += LANE * 3; },
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: fit, j: () => step(1), k: () => step(-1),
  "/": () => document.getElementById("search").focus(), n: () => nextFound(1), N: () => nextFound(-1),
  c: toggleCopies, v: toggleAlive, t: toggleTheme, "?": help, Escape: () => select(null),
};

function listen() {
  const on = (id, action) => document.getElementById(id).addEventListener("click", action);
  on("zoom-in", () => zoom(0.6));
  on("zoom-out", () => zoom(1 / 0.6));
  on("fit", fit);
  on("copies", toggleCopies);
  on("alive", toggleAlive);
  on("theme", toggleTheme);
  on("help-button", help);
  for (const name of ["detail", "slow", "found"]) on(`tab-${name}`, () => tab(name));
  const clickStep = (px) => { const found = stepAt(px); select(found < 0 ? null : { step: found }); };
  for (const id of ["ruler", "rows", "cells"]) {
    pointer(document.getElementById(id), clickStep, (px) => { const found = px > GUTTER ? stepAt(px) : -1; return found < 0 ? "" : stepText(found); });
  }
  pointer(lanes.canvas, clickLane, (px, py) => laneText(laneAt(px, py)));
  lanes.box.addEventListener("scroll", draw);
  new ResizeObserver(draw).observe(document.getElementById("charts"));
  const input = document.getElementById("search");
  input.addEventListener("input", () => find(input.value));
  document.getElementById("search-form").addEventListener("submit", (event) => { event.preventDefault(); nextFound(1); });
  document.addEventListener("keydown", (event) => {
    if (event.target === input) { if (event.key === "Escape") input.blur(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open) return;
    const action = KEYS[event.key];
    if (action) { event.preventDefault(); action(); }
  });
}

async function main() {
  lanes.canvas = document.getElementById("lanes");
  lanes.box = document.getElementById("scroll");
  await load();
  const model = data.facts.model, n = data.arrays.step_at.length;
  document.title = `${data.facts.name} - agentkv trace`;
  document.getElementById("title").textContent = data.facts.name;
  document.getElementById("facts").textContent =
    `${String(model.path).split(/[\\/]/).pop()} \u00b7 ${timeText(data.end)} \u00b7 ${n.toLocaleString()} steps \u00b7 ${data.branches.size.toLocaleString()} branches`;
  if (!data.facts.complete) warn("The recording was broken off: it is shown as far as it was written.");
  listen();
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  fit();
  select(null);
  if (data.branches.size > 200) toggleAlive();
  (window.requestIdleCallback ?? setTimeout)(entries); // what one searches is ready before one does
  document.documentElement.dataset.ready = "true";
}

document.documentElement.dataset.errors = "0";
main().catch((error) => tell(error.message));
