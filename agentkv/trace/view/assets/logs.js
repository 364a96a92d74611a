// The tokens of a branch at a moment, rebuilt from what the trace tells of them.
const decoder = new TextDecoder("utf-8", { fatal: false });
const BORN = 0, ADOPTED = 1, GENERATED = 3;

// [{first, count, made}]: parts of the column of tokens, and whether the model made them.
function logAt(id, row = Infinity, depth = 0) {
  const branch = data.branches.get(id), a = data.arrays;
  if (!branch || depth > 2000) return [];
  const rows = branch.logs;
  let end = rows.length;
  while (end > 0 && rows[end - 1] > row) end--;
  let begin = end;
  while (begin > 0 && a.log_kind[rows[begin - 1]] > ADOPTED) begin--;
  let parts = [];
  if (begin > 0) {
    const start = rows[begin - 1];
    if (a.log_from[start] >= 0) parts = logAt(a.log_from[start], start - 1, depth + 1);
  }
  for (let i = begin; i < end; i++) {
    parts = cut(parts, a.log_from[rows[i]]);
    const count = a.log_count[rows[i]];
    if (count) parts.push({ first: a.log_first[rows[i]], count, made: a.log_kind[rows[i]] === GENERATED });
  }
  return parts;
}

function cut(parts, kept) {
  const left = [];
  for (const part of parts) {
    if (kept <= 0) break;
    left.push(part.count <= kept ? part : { ...part, count: kept });
    kept -= part.count;
  }
  return left;
}

const lengthOf = (parts) => parts.reduce((sum, part) => sum + part.count, 0);

// The last row of the logs at a moment.
const rowAt = (at) => after(data.arrays.log_at, at) - 1;

function spelled(parts, from = 0, to = Infinity) {
  const found = [];
  let position = 0;
  for (const part of parts) {
    const first = Math.max(from - position, 0), last = Math.min(to - position, part.count);
    if (first < last) found.push({ made: part.made, text: textOf(part.first + first, part.first + last) });
    position += part.count;
  }
  return found;
}

function textOf(first, last) {
  const pieces = [], tokens = data.arrays.tokens;
  let size = 0;
  for (let i = first; i < last; i++) {
    const piece = data.pieces.get(tokens[i]) ?? new TextEncoder().encode(`\u27e8${tokens[i]}\u27e9`);
    pieces.push(piece);
    size += piece.length;
  }
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return decoder.decode(bytes);
}

// The messages of a branch at a moment, as far as its tokens still are theirs.
function messagesAt(branch, at, length) {
  const talks = branch.talks;
  const i = afterOf(talks, (row) => data.facts.conversations[row][0], at) - 1;
  if (i < 0) return [];
  const [, , messages] = data.facts.conversations[talks[i]];
  return messages
    .filter(([, , end]) => end <= length)
    .map(([number, start, end]) => ({ message: valueOf(number), start, end }));
}

function valueOf(number) {
  try {
    return JSON.parse(data.facts.values[number]);
  } catch {
    return {};
  }
}
