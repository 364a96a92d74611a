// The tree of branches over time: a lane each.
const LANE = 24;
const lanes = { canvas: null, box: null, alive: false };

function drawLanes() {
  if (lanes.alive) putInLanes(view.from, view.to);
  const height = Math.max(lanes.box.clientHeight, 1), pen = prepared(lanes.canvas, height);
  document.getElementById("spacer").style.height = `${Math.max(0, data.lanes.length * LANE + 8 - height)}px`;
  grid(pen, height);
  const top = lanes.box.scrollTop;
  const first = Math.max(0, Math.floor(top / LANE) - 1), last = Math.min(data.lanes.length, Math.ceil((top + height) / LANE) + 1);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, 0, view.width - GUTTER, height);
  pen.clip();
  for (let i = first; i < last; i++) drawLane(pen, data.lanes[i], i * LANE - top + 4);
  drawLinks(pen, first, last, top, height);
  pen.restore();
  for (let i = first; i < last; i++) drawName(pen, data.lanes[i], i * LANE - top + 4);
}

const middleOf = (lane, top) => lane * LANE - top + 4 + 7;

function drawLane(pen, branch, y) {
  const theme = view.theme, a = data.arrays;
  if (view.selected?.branch === branch.id) {
    pen.fillStyle = theme.turn;
    pen.fillRect(0, y - 4, view.width, LANE);
  }
  pen.globalAlpha = branch.how === "copy" ? 0.45 : 1;
  const born = Math.max(x(branch.at), GUTTER), closed = Math.min(x(Math.min(branch.closed, data.end)), view.width);
  pen.fillStyle = theme.line;
  if (closed > born) pen.fillRect(born, y + 6, closed - born, 2);
  if (branch.closed < Infinity) {
    pen.fillStyle = theme.soft;
    pen.fillRect(x(branch.closed) - 1, y + 2, 2, 10);
  }
  for (const row of visible(branch.turns, (i) => data.facts.turns[i].at, (i) => endOf(data.facts.turns[i].end))) {
    const turn = data.facts.turns[row];
    pen.fillStyle = theme.turn;
    pen.fillRect(x(turn.at), y - 2, Math.max(2, x(endOf(turn.end)) - x(turn.at)), LANE - 4);
    if (turn.error) mark(pen, x(endOf(turn.end)), y + 7, theme.bad, "cross");
  }
  for (const row of visible(branch.jobs, (i) => a.job_at[i], (i) => endOf(a.job_end[i]))) {
    const left = x(a.job_at[row]), right = x(endOf(a.job_end[row]));
    pen.fillStyle = a.job_error[row] ? theme.bad : theme[word(a.job_kind[row])] || theme.soft;
    pen.fillRect(left, y, Math.max(1, right - left), 13);
    if (right - left > 60 && a.job_tokens[row] > 0) {
      pen.fillStyle = theme.back;
      pen.fillText(`${a.job_tokens[row]} tokens`, left + 5, y + 7);
    }
  }
  for (const row of visible(branch.calls, (i) => data.facts.calls[i].at, (i) => endOf(data.facts.calls[i].end))) {
    const call = data.facts.calls[row], left = x(call.at), right = x(endOf(call.end));
    pen.fillStyle = call.status && call.status !== "done" ? theme.bad : theme.call;
    pen.fillRect(left, y + 14, Math.max(2, right - left), 4);
  }
  drawMarks(pen, branch, y);
  pen.globalAlpha = 1;
}

const endOf = (end) => (end < 0 ? data.end : end);

// Rows that one sees: in order, one where several share a pixel.
function* visible(rows, begin, end) {
  const width = (view.to - view.from) / (view.width - GUTTER);
  let i = Math.max(0, afterOf(rows, begin, view.from) - 1);
  while (i < rows.length && begin(rows[i]) <= view.to) {
    if (end(rows[i]) >= view.from) yield rows[i];
    const next = i + 1;
    const until = Math.max(end(rows[i]), begin(rows[i]) + width);
    i = next < rows.length && begin(rows[next]) < until ? Math.max(next, afterOf(rows, begin, until) - 1) : next;
  }
}

function drawMarks(pen, branch, y) {
  const a = data.arrays, theme = view.theme;
  for (const row of visible(branch.verbs, (i) => a.verb_at[i], (i) => a.verb_at[i])) {
    if (word(a.verb_name[row]) === "rollback") mark(pen, x(a.verb_at[row]), y + 7, theme.again, "back");
  }
  for (const row of visible(branch.notes, (i) => data.facts.notes[i][0], (i) => data.facts.notes[i][0])) {
    mark(pen, x(data.facts.notes[row][0]), y + 7, theme.mark, "diamond");
  }
  if (view.matches.has(branch.id)) mark(pen, GUTTER + 6, y + 7, theme.mark, "diamond");
}

function mark(pen, at, y, color, shape) {
  pen.fillStyle = pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.beginPath();
  if (shape === "cross") {
    pen.moveTo(at - 4, y - 4); pen.lineTo(at + 4, y + 4); pen.moveTo(at + 4, y - 4); pen.lineTo(at - 4, y + 4);
    return pen.stroke();
  }
  if (shape === "back") { pen.moveTo(at - 6, y); pen.lineTo(at + 2, y - 6); pen.lineTo(at + 2, y + 6); }
  else { pen.moveTo(at, y - 5); pen.lineTo(at + 5, y); pen.lineTo(at, y + 5); pen.lineTo(at - 5, y); }
  pen.closePath();
  pen.fill();
}

function drawLinks(pen, first, last, top, height) {
  pen.lineWidth = 1;
  for (let i = first; i < last; i++) {
    const branch = data.lanes[i], parent = data.branches.get(branch.source);
    if (!parent || parent.lane < 0 || x(branch.at) < GUTTER) continue;
    link(pen, x(branch.at), middleOf(parent.lane, top), middleOf(i, top), view.theme.soft, height);
  }
  const a = data.arrays;
  pen.setLineDash([3, 3]);
  for (let i = first; i < last; i++) {
    const branch = data.lanes[i];
    for (const row of visible(branch.verbs, (j) => a.verb_at[j], (j) => a.verb_at[j])) {
      if (word(a.verb_name[row]) !== "adopt") continue;
      const source = data.branches.get(a.verb_a[row]);
      if (source && source.lane >= 0) link(pen, x(a.verb_at[row]), middleOf(source.lane, top), middleOf(i, top), view.theme.accent, height);
    }
  }
  pen.setLineDash([]);
}

function link(pen, at, from, to, color, height) {
  pen.strokeStyle = color;
  pen.beginPath();
  pen.moveTo(Math.round(at) + 0.5, Math.min(Math.max(from, -10), height + 10));
  pen.lineTo(Math.round(at) + 0.5, Math.min(Math.max(to, -10), height + 10));
  pen.stroke();
}

function drawName(pen, branch, y) {
  const theme = view.theme, indent = 12 + Math.min(branch.depth, 7) * 10;
  pen.fillStyle = view.selected?.branch === branch.id ? theme.panel : theme.back;
  pen.fillRect(0, y - 4, GUTTER - 1, LANE);
  pen.fillStyle = theme.soft;
  if (branch.children.length) pen.fillText(branch.folded ? "\u25b8" : "\u25be", indent - 10, y + 7);
  pen.fillStyle = view.selected?.branch === branch.id ? theme.accent : branch.how === "copy" ? theme.soft : theme.text;
  pen.fillText(`${branch.how === "copy" ? "copy" : "branch"} ${branch.id}`, indent, y + 7);
}

// What is under the pointer: a branch, and what of it.
function laneAt(px, py) {
  const lane = Math.floor((py + lanes.box.scrollTop - 0) / LANE), branch = data.lanes[lane];
  if (!branch) return null;
  const inside = py + lanes.box.scrollTop - lane * LANE, at = ms(px), slack = ms(px + 3) - at, a = data.arrays;
  if (px < GUTTER) return { branch: branch.id, at: data.end, name: true, fold: px < 12 + Math.min(branch.depth, 7) * 10 };
  const near = (rows, begin, end) => rows.find((i) => begin(i) - slack <= at && at <= endOf(end(i)) + slack);
  if (inside > 17) {
    const call = near(branch.calls, (i) => data.facts.calls[i].at, (i) => data.facts.calls[i].end);
    if (call !== undefined) return { branch: branch.id, at, call };
  }
  const i = afterOf(branch.jobs, (row) => a.job_at[row], at + slack) - 1;
  const job = i >= 0 && endOf(a.job_end[branch.jobs[i]]) + slack >= at ? branch.jobs[i] : undefined;
  return { branch: branch.id, at, job };
}
