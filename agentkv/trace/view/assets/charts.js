// What each forward merged, and what the cache held.
const STACK = ["prefill", "again", "decode", "accepted", "rejected"];

function drawRows() {
  const canvas = document.getElementById("rows"), height = 110, pen = prepared(canvas, height), a = data.arrays;
  grid(pen, height);
  const base = height - 8, top = 16;
  const first = Math.max(0, after(a.step_at, view.from) - 1), last = after(a.step_at, view.to);
  const wide = (last - first) * 2 < view.width - GUTTER;
  const columns = wide ? stepColumns(first, last) : pixelColumns(first, last);
  const most = Math.max(1, ...columns.map((column) => column.total));
  const scale = (base - top) / Math.log2(1 + most); // logarithmic: one decode row shows beside 512 of a prompt
  for (const column of columns) {
    let below = 0;
    for (const kind of STACK) {
      const rows = column[kind];
      if (!rows) continue;
      const low = Math.log2(1 + below) * scale, high = Math.log2(1 + below + rows) * scale;
      pen.fillStyle = view.theme[kind];
      pen.fillRect(column.x, base - high, column.width, high - low);
      below += rows;
    }
  }
  if (view.step >= 0) {
    pen.strokeStyle = view.theme.text;
    pen.strokeRect(x(a.step_at[view.step]) - 0.5, 3.5, Math.max(2, x(a.step_at[view.step] + a.step_took[view.step]) - x(a.step_at[view.step])) + 1, base - 3);
  }
  gutter(pen, height, "rows per step", [["logarithmic", view.theme.soft], [`up to ${shortNumber(most)}`, view.theme.soft]]);
}

function stepColumns(first, last) {
  const a = data.arrays, columns = [];
  for (let i = first; i < last; i++) {
    const left = Math.max(GUTTER, x(a.step_at[i])), right = x(a.step_at[i] + a.step_took[i]);
    if (right < GUTTER) continue;
    columns.push({ ...rowsOf(i, i + 1), x: left, width: Math.max(1, right - left) });
  }
  return columns;
}

function pixelColumns(first, last) {
  const a = data.arrays, columns = [];
  let i = first;
  for (let px = GUTTER; px < view.width; px++) {
    const next = after(a.step_at, ms(px + 1), i, last);
    if (next > i) columns.push({ ...rowsOf(i, next), x: px, width: 1 });
    i = next;
  }
  return columns;
}

function rowsOf(first, last) {
  const rows = { total: 0 };
  for (const kind of STACK) {
    rows[kind] = (data.sums[kind][last] - data.sums[kind][first]) / (last - first);
    rows.total += rows[kind];
  }
  return rows;
}

function drawCells() {
  const canvas = document.getElementById("cells"), height = 70, pen = prepared(canvas, height), a = data.arrays;
  grid(pen, height);
  const base = height - 6, top = 8, n = a.held_at.length;
  const first = Math.max(0, after(a.held_at, view.from) - 1), last = Math.min(n, after(a.held_at, view.to) + 1);
  let most = 1, bytes = 1;
  for (let i = 0; i < n; i++) {
    most = Math.max(most, a.held_used[i] + a.held_retained[i]);
    bytes = Math.max(bytes, a.held_bytes[i]);
  }
  const stride = Math.max(1, Math.floor((last - first) / (2 * view.width)));
  const line = (color, value, limit) => {
    pen.strokeStyle = color;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (let i = first; i < last; i += stride) {
      const y = base - (value(i) / limit) * (base - top);
      if (i > first) pen.lineTo(x(a.held_at[i]), lastY);
      pen.lineTo(x(a.held_at[i]), y);
      lastY = y;
    }
    pen.stroke();
  };
  let lastY = base;
  line(view.theme.retained, (i) => a.held_used[i] + a.held_retained[i], most);
  line(view.theme.bytes, (i) => a.held_bytes[i], bytes);
  line(view.theme.shared, (i) => a.held_shared[i], most);
  line(view.theme.used, (i) => a.held_used[i], most);
  gutter(pen, height, "cache", [[`${shortNumber(most)} cells`, view.theme.used], [bytesText(bytes), view.theme.bytes]]);
}

function gutter(pen, height, title, lines) {
  pen.fillStyle = view.theme.back;
  pen.fillRect(0, 0, GUTTER - 1, height);
  pen.fillStyle = view.theme.text;
  pen.fillText(title, 14, 14);
  lines.forEach(([text, color], i) => {
    pen.fillStyle = color;
    pen.fillText(text, 14, 31 + 15 * i);
  });
}

// The step at a moment, or the one before it if that is near.
function stepAt(px) {
  const a = data.arrays, i = after(a.step_at, ms(px)) - 1;
  if (i < 0) return a.step_at.length && x(a.step_at[0]) - px < 6 ? 0 : -1;
  const end = x(a.step_at[i] + a.step_took[i]);
  if (px <= end + 4) return i;
  return i + 1 < a.step_at.length && x(a.step_at[i + 1]) - px < 4 ? i + 1 : -1;
}

function sharesOf(step) {
  const a = data.arrays, number = a.step_shares[step], found = [];
  const end = a.share_first[number + 1] ?? a.share_branch.length;
  for (let i = a.share_first[number]; i < end; i++) {
    found.push({
      branch: a.share_branch[i], kind: ["prefill", "decode", "fed again"][a.share_kind[i]], rows: a.share_rows[i],
      drafted: a.share_drafted[i], accepted: a.share_accepted[i],
    });
  }
  return found;
}
