// Search in what was said, called and noted.
const search = { entries: null, found: [], at: -1 };

function entries() {
  if (search.entries) return search.entries;
  const made = [];
  const add = (text, at, branch, what, more = {}) => text && made.push({ text, low: text.toLowerCase(), at, branch, what, ...more });
  const seen = new Set();
  for (const [at, branch, messages] of data.facts.conversations) {
    for (const [number] of messages) {
      if (seen.has(number)) continue;
      seen.add(number);
      const message = valueOf(number);
      add(said(message), at, branch, String(message.role));
    }
  }
  data.facts.calls.forEach((call, row) => add(`${call.name} ${call.arguments ?? ""} ${call.content}`, call.at, call.branch, "call", { call: row }));
  for (const [at, branch, what, text] of data.facts.notes) add(`${what} ${text}`, at, branch, "note");
  for (const turn of data.facts.turns) add(turn.error, endOf(turn.end), turn.branch, "turn");
  data.arrays.job_error.forEach((error, row) => error && add(word(error), data.arrays.job_at[row], data.arrays.job_branch[row], "error", { job: row }));
  for (const branch of data.branches.values()) {
    add(`branch ${branch.id}`, branch.at, branch.id, branch.how);
    for (const row of branch.logs) {
      if (data.arrays.log_kind[row] !== GENERATED) continue;
      const first = data.arrays.log_first[row];
      add(textOf(first, first + data.arrays.log_count[row]), data.arrays.log_at[row], branch.id, "generated");
    }
  }
  search.entries = made.sort((one, other) => one.at - other.at);
  return search.entries;
}

function find(text) {
  const low = text.trim().toLowerCase();
  search.found = low ? entries().filter((entry) => entry.low.includes(low)) : [];
  search.at = -1;
  view.matches = new Set(search.found.map((entry) => entry.branch));
  document.getElementById("found").textContent = low ? `${search.found.length} found` : "";
  if (low) tab("found");
  else tab("detail");
  draw();
}

function nextFound(by) {
  if (!search.found.length) return;
  search.at = (search.at + by + search.found.length) % search.found.length;
  document.getElementById("found").textContent = `${search.at + 1} of ${search.found.length}`;
  goToFound(search.found[search.at]);
}

function goToFound(entry) {
  if (entry.at < view.from || entry.at > view.to) goTo(entry.at);
  const branch = data.branches.get(entry.branch);
  if (branch) {
    select({ branch: branch.id, at: Math.max(entry.at, branch.at), call: entry.call, job: entry.job });
    reveal(branch);
  } else goTo(entry.at);
}

function reveal(branch) {
  if (lanes.alive) putInLanes(view.from, view.to);
  if (branch.lane < 0) return;
  const top = branch.lane * LANE, box = lanes.box;
  if (top < box.scrollTop || top + LANE > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
  draw();
}

function showFound() {
  fill(
    element("h2", {}, search.found.length ? `${search.found.length} found` : "Nothing found"),
    element("table", {}, ...search.found.slice(0, 200).map((entry, i) => linked(
      () => { search.at = i; goToFound(entry); },
      element("td", {}, timeText(entry.at, data.end)), element("td", {}, entry.what),
      element("td", {}, entry.text.slice(0, 120))))),
    search.found.length > 200 && element("p", {}, "The first 200 are listed; n goes through all of them."),
  );
}
