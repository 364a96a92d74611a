// The trace: columns as typed arrays, and indexes over them.
const data = { arrays: {}, facts: null, branches: new Map(), lanes: [] };

async function unpacked(id) {
  const element = document.getElementById(id);
  const letters = atob(element.textContent);
  element.remove();
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function load() {
  data.facts = JSON.parse(new TextDecoder().decode(await unpacked("facts-data")));
  const blob = await unpacked("arrays-data");
  const types = { Float64Array, Float32Array, Int32Array, Uint8Array };
  for (const [name, [type, at, length]] of Object.entries(data.facts.arrays)) {
    data.arrays[name] = new types[type](blob, at, length);
  }
  data.end = Math.max(data.facts.end, 0.001);
  indexBranches();
  indexSteps();
  indexPieces();
}

const word = (number) => data.facts.strings[number];

function indexBranches() {
  const a = data.arrays;
  const known = (id) => {
    if (!data.branches.has(id)) addBranch(id, 0, "found", -1, 0);
    return data.branches.get(id);
  };
  for (const [id, at, how, source, reused] of data.facts.branches) addBranch(id, at, how, source, reused);
  for (const column of [a.job_branch, a.log_branch]) for (const id of column) known(id);
  const close = data.facts.strings.indexOf("close");
  a.verb_name.forEach((name, row) => {
    const branch = data.branches.get(a.verb_branch[row]);
    if (branch && name === close) branch.closed = a.verb_at[row];
  });
  group(a.job_branch, "jobs");
  group(a.log_branch, "logs");
  group(a.verb_branch, "verbs");
  const put = (name, items, of) => items.forEach((item, row) => data.branches.get(of(item))?.[name].push(row));
  put("turns", data.facts.turns, (turn) => turn.branch);
  put("calls", data.facts.calls, (call) => call.branch);
  put("notes", data.facts.notes, (note) => note[1]);
  put("talks", data.facts.conversations, (talk) => talk[1]);
  for (const branch of data.branches.values()) data.branches.get(branch.source)?.children.push(branch);
  layOut();
}

function addBranch(id, at, how, source, reused) {
  data.branches.set(id, {
    id, at, how, source, reused, closed: Infinity, children: [], depth: 0, lane: -1, folded: false,
    jobs: [], logs: [], verbs: [], turns: [], calls: [], notes: [], talks: [],
  });
}

function group(column, name) {
  for (let row = 0; row < column.length; row++) data.branches.get(column[row])?.[name].push(row);
}

// The branches in the order of a tree: children under their parent, as they were born.
function layOut(copies = false) {
  data.order = [];
  const roots = [...data.branches.values()].filter((branch) => !data.branches.has(branch.source));
  const open = roots.reverse().map((branch) => [branch, 0]);
  while (open.length) {
    const [branch, depth] = open.pop();
    const shown = copies || branch.how !== "copy";
    if (shown) {
      branch.depth = depth;
      data.order.push(branch);
    }
    if (branch.folded) continue;
    for (let i = branch.children.length - 1; i >= 0; i--) open.push([branch.children[i], depth + (shown ? 1 : 0)]);
  }
  putInLanes();
}

// Those of the order that have a lane: all, or those that live between two moments.
function putInLanes(from = -Infinity, to = Infinity) {
  for (const branch of data.branches.values()) branch.lane = -1;
  data.lanes = data.order.filter((branch) => branch.at <= to && branch.closed >= from);
  data.lanes.forEach((branch, lane) => { branch.lane = lane; });
}

function indexSteps() {
  const a = data.arrays, n = a.step_at.length;
  const sums = (column) => {
    const sum = new Float64Array(n + 1);
    for (let i = 0; i < n; i++) sum[i + 1] = sum[i] + column(i);
    return sum;
  };
  data.sums = {
    prefill: sums((i) => a.step_prefill[i]),
    again: sums((i) => a.step_again[i]),
    decode: sums((i) => a.step_decode[i] - a.step_drafted[i]),
    accepted: sums((i) => a.step_accepted[i]),
    rejected: sums((i) => a.step_drafted[i] - a.step_accepted[i]),
    took: sums((i) => a.step_took[i]),
  };
  data.mostRows = 1;
  for (let i = 0; i < n; i++) data.mostRows = Math.max(data.mostRows, a.step_prefill[i] + a.step_decode[i] + a.step_again[i]);
  const order = Array.from({ length: n }, (_, i) => i);
  data.slowest = order.sort((i, j) => a.step_took[j] - a.step_took[i]).slice(0, 50);
}

function indexPieces() {
  const { piece_token: tokens, piece_first: firsts, pieces } = data.arrays;
  data.pieces = new Map();
  tokens.forEach((token, i) => data.pieces.set(token, pieces.subarray(firsts[i], firsts[i + 1] ?? pieces.length)));
}

// The first index from `low` on at which `column` is more than `value`; columns rise.
function after(column, value, low = 0, high = column.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The same over rows that a list names.
function afterOf(rows, column, value) {
  let low = 0, high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column(rows[middle]) > value) high = middle;
    else low = middle + 1;
  }
  return low;
}
