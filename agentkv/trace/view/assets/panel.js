// What is behind a branch, a bar, a call or a step. Everything that a trace says is shown as text, never as markup.
function element(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...inside.filter((each) => each !== null && each !== undefined && each !== ""));
  return made;
}

const panel = () => document.getElementById("detail");
function fill(...inside) {
  panel().replaceChildren(...inside.flat().filter(Boolean));
  panel().scrollTop = 0;
}

function table(rows) {
  return element("table", {}, ...rows.filter(Boolean).map(([name, value]) =>
    element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value))));
}

function linked(action, ...cells) {
  const act = (event) => {
    if (event.type === "click" || event.key === "Enter") action();
  };
  return element("tr", { class: "link", tabindex: "0", onclick: act, onkeydown: act }, ...cells);
}

function tab(name) {
  for (const each of ["detail", "slow", "found"]) {
    document.getElementById(`tab-${each}`).setAttribute("aria-selected", String(each === name));
  }
  if (name === "slow") showSlowest();
  else if (name === "found") showFound();
  else showSelected();
}

function select(selected) {
  view.selected = selected;
  view.step = selected?.step ?? -1;
  tab("detail");
  draw();
}

function showSelected() {
  const { branch, step, call } = view.selected ?? {};
  if (step >= 0) return showStep(step);
  if (call !== undefined) return showCall(data.facts.calls[call]);
  if (branch !== undefined) return showBranch(data.branches.get(branch), view.selected.at, view.selected.job);
  showOverview();
}

function showOverview() {
  const a = data.arrays, model = data.facts.model, n = a.step_at.length;
  const drafted = a.step_drafted.reduce((sum, each) => sum + each, 0), accepted = a.step_accepted.reduce((sum, each) => sum + each, 0);
  const generate = data.facts.strings.indexOf("generate");
  let tokens = 0, generations = 0;
  a.job_kind.forEach((kind, i) => { if (kind === generate) { generations++; tokens += a.job_tokens[i]; } });
  const busy = data.sums.took[n];
  fill(
    element("h2", {}, "The whole run"),
    table([
      ["began", new Date(model.unix_ms).toLocaleString()],
      ["took", timeText(data.end)],
      ["model", `${String(model.path).split(/[\\/]/).pop()} (${model.backend}, ${model.quantization}, ${model.kv_dtype})`],
      ["kernels", model.isa],
      ["steps", `${n.toLocaleString()}, ${timeText(busy)} together`],
      ["rows", `${data.sums.prefill[n].toLocaleString()} of prompts, ${(data.sums.decode[n] + drafted).toLocaleString()} to decode, ${data.sums.again[n].toLocaleString()} fed again`],
      ["generated", `${tokens.toLocaleString()} tokens in ${generations.toLocaleString()} generations`],
      drafted && ["drafted", `${drafted.toLocaleString()}, of which ${accepted.toLocaleString()} came true (${Math.round((100 * accepted) / drafted)}%)`],
      ["branches", `${data.branches.size.toLocaleString()}, ${data.facts.turns.length} turns, ${data.facts.calls.length} calls`],
    ]),
    element("p", {}, "Click a branch, a bar, a call or a step; ? lists the keys."),
  );
}

function showStep(step) {
  const a = data.arrays, took = a.step_took[step], overhead = took - a.step_forward[step] - a.step_draft[step];
  fill(
    element("h2", {}, `Step ${step + 1} of ${a.step_at.length}`),
    table([
      ["at", timeText(a.step_at[step], data.end)],
      ["took", timeText(took)],
      ["forward", timeText(a.step_forward[step])],
      a.step_draft[step] > 0 && ["drafting", timeText(a.step_draft[step])],
      ["the rest", timeText(Math.max(0, overhead))],
    ]),
    element("h3", {}, "What it merged"),
    element("table", {}, ...sharesOf(step).map((share) => linked(
      () => select({ branch: share.branch, at: a.step_at[step] + took }),
      element("td", {}, `branch ${share.branch}`), element("td", {}, share.kind),
      element("td", { class: "number" }, `${share.rows} rows`),
      element("td", {}, share.drafted ? `${share.accepted} of ${share.drafted} drafts` : "")))),
  );
}

function showCall(call) {
  fill(
    element("h2", {}, call.name),
    table([
      ["call", `${call.turn}:${call.call}`],
      ["on", `branch ${call.branch}`],
      ["began", timeText(call.at, data.end)],
      ["took", call.end < 0 ? "it did not end" : timeText(call.end - call.at)],
      ["status", element("span", call.status && call.status !== "done" ? { class: "bad" } : {}, call.status || "running")],
      call.attempts > 1 && ["attempts", String(call.attempts)],
    ]),
    element("h3", {}, "Arguments"), block("tool", "", call.arguments ?? ""),
    element("h3", {}, "What the model reads"), block("tool", "", call.content),
  );
}

function showBranch(branch, at, job) {
  const a = data.arrays, parts = logAt(branch.id, rowAt(at)), length = lengthOf(parts);
  const known = data.branches.get(branch.source);
  const made = branch.jobs.filter((row) => word(a.job_kind[row]) === "generate");
  fill(
    element("h2", {}, `Branch ${branch.id}`),
    table([
      ["born", `${branch.how}${known ? ` of branch ${branch.source}` : ""}, at ${timeText(branch.at, data.end)}`],
      branch.closed < Infinity && ["closed", timeText(branch.closed, data.end)],
      ["tokens", `${length.toLocaleString()} at ${timeText(at, data.end)}${branch.reused ? `; ${branch.reused} were in the cache` : ""}`],
      branch.children.length && ["forks", branch.children.map((child) => child.id).slice(0, 20).join(", ")],
    ]),
    made.length && element("h3", {}, "Generations"),
    made.length && generations(branch, made.slice(-200), job),
    branch.calls.length && element("h3", {}, "Calls"),
    branch.calls.length && element("table", {}, ...branch.calls.map((row) => {
      const call = data.facts.calls[row];
      return linked(() => select({ branch: branch.id, at: call.at, call: row }),
        element("td", {}, call.name), element("td", call.status === "done" ? {} : { class: "bad" }, call.status || "running"),
        element("td", { class: "number" }, call.end < 0 ? "" : timeText(call.end - call.at)));
    })),
    notesOf(branch),
    element("h3", {}, "Conversation"),
    conversation(branch, at, parts, length),
  );
}

function generations(branch, rows, job) {
  const a = data.arrays;
  return element("table", {}, ...rows.map((row) => {
    const took = endOf(a.job_end[row]) - a.job_at[row], tokens = a.job_tokens[row];
    const reason = word(a.job_error[row]) || word(a.job_reason[row]) || "running";
    return linked(() => { goTo((a.job_at[row] + endOf(a.job_end[row])) / 2); select({ branch: branch.id, at: endOf(a.job_end[row]), job: row }); },
      element("td", {}, row === job ? element("b", {}, timeText(a.job_at[row], data.end)) : timeText(a.job_at[row], data.end)),
      element("td", { class: "number" }, `${tokens} tokens`),
      element("td", { class: "number" }, took > 0 ? `${((1000 * tokens) / took).toFixed(0)}/s` : ""),
      element("td", { class: "number", title: "until the first token" }, a.job_first_token[row] > 0 ? timeText(a.job_first_token[row]) : ""),
      element("td", a.job_error[row] ? { class: "bad" } : {}, reason));
  }));
}

function notesOf(branch) {
  if (!branch.notes.length) return null;
  return element("div", {}, element("h3", {}, "Notes"), element("table", {}, ...branch.notes.map((row) => {
    const [at, , what, text] = data.facts.notes[row];
    return linked(() => goTo(at), element("td", {}, timeText(at, data.end)), element("td", {}, what), element("td", {}, text));
  })));
}

function conversation(branch, at, parts, length) {
  const box = element("div");
  let position = 0;
  for (const { message, start, end } of messagesAt(branch, at, length)) {
    if (start > position) box.append(...rest(parts, position, start));
    box.append(block(String(message.role), message.role === "tool" ? `tool ${message.name ?? ""}` : String(message.role), said(message)));
    position = Math.max(position, end);
  }
  box.append(...rest(parts, position, length));
  if (!length) box.append(element("p", {}, "It holds nothing yet."));
  return box;
}

function said(message) {
  const lines = [message.reasoning_content ?? message.thinking ?? "", typeof message.content === "string" ? message.content : message.content ? JSON.stringify(message.content) : ""];
  for (const call of message.tool_calls ?? []) {
    lines.push(`\u2192 ${call.function?.name ?? call.name}(${JSON.stringify(call.function?.arguments ?? call.arguments ?? {})})`);
  }
  return lines.filter(Boolean).join("\n");
}

// Tokens that are no message's: text that was given, or what the model has just said.
function rest(parts, from, to) {
  return spelled(parts, from, to).filter((each) => each.text.trim()).map((each) =>
    block(each.made ? "assistant" : "text", each.made ? "generated" : "text", each.text));
}

function block(kind, title, text) {
  const known = ["user", "assistant", "tool", "system"].includes(kind) ? kind : "text";
  const long = text.length > 700 || text.split("\n").length > 8;
  const box = element("div", { class: `message ${known}${long ? " folded" : ""}` }, title && element("b", {}, title), element("pre", {}, text.slice(0, 200000)));
  if (long) {
    const more = element("button", { class: "more", onclick: () => { more.textContent = box.classList.toggle("folded") ? "More" : "Less"; } }, "More");
    box.append(more);
  }
  return box;
}

function showSlowest() {
  const a = data.arrays;
  fill(
    element("h2", {}, "Slowest steps"),
    element("table", {}, ...data.slowest.map((step) => linked(
      () => { goTo(a.step_at[step] + a.step_took[step] / 2, Math.max(8 * a.step_took[step], 1)); select({ step }); },
      element("td", { class: "number" }, timeText(a.step_took[step])),
      element("td", {}, `at ${timeText(a.step_at[step], data.end)}`),
      element("td", { class: "number" }, `${a.step_prefill[step] + a.step_decode[step] + a.step_again[step]} rows`),
      element("td", {}, a.step_prefill[step] ? `${a.step_prefill[step]} of prompts` : "")))),
  );
}
