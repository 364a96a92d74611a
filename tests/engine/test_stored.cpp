// Branches outside of the cache: held, restored, set aside and brought back.
#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

// What a file would keep: the rows of a hold, by the tokens that the reference program has in its cells.
using Rows = std::vector<ReferenceRunner::Entry>;

Rows read(Rig& rig, const PinnedCells::Pin& hold) {
  Rows rows;
  for (const Cell cell : rig.engine.pinned().cells(hold.id, 0, hold.rows)) rows.push_back(rig.program->cell(cell));
  return rows;
}

void write(Rig& rig, const PinnedCells::Pin& hold, const Rows& rows) {
  const auto cells = rig.engine.pinned().cells(hold.id, 0, hold.rows);
  CHECK_EQ(cells.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rig.program->cell(cells[i]) = rows[i];
}

void check_goes_on(Rig& rig, BranchId branch, const Tokens& history) {
  CHECK(rig.log(branch) == history);
  CHECK(rig.run(rig.engine.logits(branch)).logits == rig.row(history));
  CHECK(rig.generate(branch, 4).tokens == rig.expected(history, 4));
}

void branches_come_back_and_share_what_they_shared() {
  Rig rig;
  const BranchId trunk = rig.prompt(prompt_tokens(8));
  const BranchId kid = rig.engine.fork(trunk);
  rig.generate(kid, 3);
  const BranchId empty = rig.engine.create().first;
  const std::vector<BranchId> all = {kid, trunk, empty};
  const auto [hold, images] = rig.engine.pinned().take(all);
  CHECK_EQ(hold.rows, rig.cells->used());
  CHECK_EQ(images[0].rows.size(), 1u);
  CHECK(!images[1].next_logits.empty());
  const Rows rows = read(rig, hold);
  std::vector<Tokens> logs;
  for (const BranchId id : all) logs.push_back(rig.log(id));
  for (const BranchId id : all) rig.engine.close(id);
  CHECK_EQ(rig.cells->used(), hold.rows);  // the hold has them
  CHECK(read(rig, hold) == rows);
  rig.engine.pinned().unpin(hold.id);
  rig.engine.pinned().unpin(hold.id);
  CHECK_EQ(rig.cells->used(), 0);

  const auto fresh = rig.engine.pinned().reserve(hold.rows);
  write(rig, fresh, rows);
  const auto ids = rig.engine.restore(fresh.id, images);
  rig.engine.pinned().unpin(fresh.id);
  rig.check_state();
  CHECK_EQ(rig.cells->used(), hold.rows);
  CHECK_EQ(rig.cells->shared(), 8);
  for (std::size_t i = 0; i < 2; ++i) check_goes_on(rig, ids[i], logs[i]);
  CHECK(rig.log(ids[2]).empty());
  CHECK_EQ(rig.engine.branch(ids[1]).forks, 1u);
}

void cells_in_a_row_are_reserved_where_there_are_some() {
  Rig rig({.capacity = 32});
  PinnedCells& held = rig.engine.pinned();
  rig.prompt(prompt_tokens(3));
  const auto row = held.reserve(8, 8);
  const std::vector<Cell> aligned = held.cells(row.id, 0, 8);
  CHECK_EQ(aligned.front(), 8);
  CHECK_EQ(aligned.back(), 15);
  const auto rest = held.reserve(20, 8);  // 16 cells behind, 5 before
  CHECK_EQ(rest.rows, 20);
  const std::vector<Cell> lowest = held.cells(rest.id, 0, 20);
  CHECK_EQ(lowest.front(), 3);
  CHECK_EQ(held.reserve(0, 8).rows, 0);
}

void a_busy_branch_is_held_as_it_is() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(4));
  const JobId job = rig.engine.generate(branch, {.max_tokens = 20, .ignore_eos = true});
  for (int i = 0; i < 5; ++i) rig.engine.step();
  const BranchId one[] = {branch};
  const auto [hold, images] = rig.engine.pinned().take(one);
  CHECK(images[0].log == rig.log(branch));
  CHECK_EQ(hold.rows, rig.engine.branch(branch).n_cached);
  rig.engine.cancel(job);
  rig.engine.close(branch);
  const auto ids = rig.engine.restore(hold.id, images);
  rig.engine.pinned().unpin(hold.id);
  check_goes_on(rig, ids[0], images[0].log);
}

void what_does_not_fit_changes_nothing() {
  Rig rig({.capacity = 32, .max_sequences = 4, .config = {.max_branches = 3, .max_positions = 20}});
  const BranchId branch = rig.prompt(prompt_tokens(10));
  const BranchId one[] = {branch};
  const auto [hold, images] = rig.engine.pinned().take(one);
  const auto refused = [&](auto change) {
    StoredBranch bad = images[0];
    change(bad);
    const StoredBranch both[] = {images[0], bad};
    bool threw = false;
    try {
      rig.engine.restore(hold.id, both);
    } catch (const Error&) {
      threw = true;
    }
    CHECK(threw);
    CHECK_EQ(rig.engine.branches().size(), 1u);
    CHECK_EQ(rig.cells->used(), 10);
  };
  refused([](StoredBranch& b) { b.log.push_back(999); });
  refused([](StoredBranch& b) { b.log.push_back(-1); });
  refused([](StoredBranch& b) { b.log.resize(12); });  // logits after two tokens without rows
  refused([](StoredBranch& b) { b.log.pop_back(); });  // a row without a token
  refused([](StoredBranch& b) { b.log.resize(11); });  // logits after a pending token
  refused([](StoredBranch& b) { b.next_logits.pop_back(); });
  refused([](StoredBranch& b) { b.rows = {{0, 1, 9}}; });  // a hole
  refused([](StoredBranch& b) {
    b.rows = {{0, 0, 11}};
    b.log.resize(11);
  });                                                                 // beyond the hold
  refused([](StoredBranch& b) { b.rows = {{0, 0, 5}, {0, 5, 5}}; });  // a row twice
  refused([](StoredBranch& b) { b.rows = {{-1, 0, 10}}; });
  refused([](StoredBranch& b) { b.rows = {{0, 0, -10}}; });
  refused([](StoredBranch& b) { b.forgotten = {{3, 5, 11}}; });  // when there were more tokens than there are
  refused([](StoredBranch& b) { b.forgotten = {{5, 5, 8}}; });
  refused([](StoredBranch& b) { b.forgotten = {{-1, 5, 8}}; });
  refused([](StoredBranch& b) { b.forgotten = {{3, 8, 8}}; });  // the last token then
  refused([](StoredBranch& b) { b.forgotten = {{1, 2, 9}, {3, 4, 8}}; });
  refused([](StoredBranch& b) { b.output.end = 11; });
  refused([](StoredBranch& b) { b.output.began = -1; });
  refused([](StoredBranch& b) { b.output = {.began = 3, .end = 2}; });
  CHECK_THROWS(rig.engine.pinned().reserve(23), ContextFull, "22 of 32");
  CHECK_THROWS(rig.engine.pinned().reserve(-1), InvalidRange);
  CHECK_THROWS(rig.engine.pinned().cells(hold.id, 0, 11), InvalidRange);
  CHECK_THROWS(rig.engine.pinned().cells(hold.id, -1, 1), InvalidRange);
  const BranchId gone[] = {77};
  CHECK_THROWS(rig.engine.pinned().take(gone), BranchClosed);
  const std::vector<StoredBranch> three(3, images[0]);
  CHECK_THROWS(rig.engine.restore(hold.id, three), TooManyBranches);
  CHECK_EQ(rig.engine.branches().size(), 1u);
  rig.engine.create();
  rig.engine.create();
  CHECK_THROWS(rig.engine.pinned().reserve(1), TooManyBranches, "spare");
  rig.engine.pinned().unpin(hold.id);
  CHECK_THROWS(rig.engine.restore(hold.id, images), InvalidRange, "pin");
}

void a_branch_that_is_set_aside_comes_back() {
  Rig rig;
  const BranchId trunk = rig.prompt(prompt_tokens(6));
  const BranchId kid = rig.engine.fork(trunk);
  rig.generate(kid, 5);
  const Tokens history = rig.log(kid);
  const auto hold = rig.engine.pinned().take_unshared(kid);
  CHECK_EQ(hold.rows, rig.engine.branch(kid).n_cached - 6);
  const Rows rows = read(rig, hold);
  rig.engine.offload(kid, hold.id);
  rig.engine.pinned().unpin(hold.id);
  CHECK_EQ(rig.cells->used(), 6);
  CHECK_THROWS(rig.engine.generate(kid, {.max_tokens = 1}), BranchBusy, "set aside");
  CHECK_THROWS(rig.engine.fork(kid), BranchBusy);
  const BranchId one[] = {kid};
  CHECK_THROWS(rig.engine.pinned().take(one), BranchBusy);
  // Its prompt can still be lent, as far as its cells are there.
  const auto [other, reused] = rig.engine.create(history);
  CHECK_EQ(reused, 6);
  rig.engine.close(other);
  rig.prompt(prompt_tokens(20));  // others take the cells

  const auto fresh = rig.engine.pinned().reserve(hold.rows);
  write(rig, fresh, rows);
  rig.engine.reload(kid, fresh.id);
  rig.engine.pinned().unpin(fresh.id);
  CHECK_THROWS(rig.engine.reload(kid, fresh.id), InvalidRange);
  rig.check_state();
  check_goes_on(rig, kid, history);
  check_goes_on(rig, trunk, prompt_tokens(6));
}

void a_branch_that_went_on_is_not_set_aside() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(6));
  const auto hold = rig.engine.pinned().take_unshared(branch);
  rig.engine.rollback(branch, 4);
  CHECK_THROWS(rig.engine.offload(branch, hold.id), InvalidRange, "went on");
  rig.engine.pinned().unpin(hold.id);
  rig.check_state();
  const auto again = rig.engine.pinned().take_unshared(branch);
  rig.engine.offload(branch, again.id);
  rig.engine.close(branch);  // closing needs no cells
  rig.engine.pinned().unpin(again.id);
  CHECK_EQ(rig.cells->used(), 0);
}

void prompts_begin_with_rows_of_a_pin() {
  const Tokens whole = prompt_tokens(12);
  Rows rows;
  {
    Rig rig;
    const BranchId one[] = {rig.prompt(whole)};
    rows = read(rig, rig.engine.pinned().take(one).first);
  }
  rows.resize(10);
  for (const Pos live : {0, 4, 10, 11}) {
    Rig rig;
    Tokens begun(whole.begin(), whole.begin() + live);
    begun.push_back(40);
    rig.prompt(begun);  // shares as much
    const auto pin = rig.engine.pinned().reserve(10);
    write(rig, pin, rows);
    const Cell used = rig.cells->used();
    const std::uint64_t stream = rig.engine.take_stream();
    const auto [branch, reused] = rig.engine.create_prompt(whole, pin.id, 0, stream);
    rig.engine.pinned().unpin(pin.id);
    const Pos has = std::max<Pos>(live, 10), shared = std::min<Pos>(live, 10);
    CHECK_EQ(reused, has);
    CHECK_EQ(rig.cells->used(), used - shared);  // what is shared is not there twice
    CHECK_EQ(rig.engine.branch(branch).rng_stream, stream);
    CHECK(!rig.run(rig.engine.extend(branch, std::span(whole).subspan(static_cast<std::size_t>(reused)))).error);
    check_goes_on(rig, branch, whole);
    CHECK_EQ(rig.engine.create(whole).second, 11);  // it lends what it has
    CHECK_EQ(rig.engine.branch(rig.engine.create().first).rng_stream, stream + 2);
  }
}

void a_prompt_without_all_rows_of_a_pin() {
  Rig rig({.config = {.max_branches = 2}});
  const Tokens whole = prompt_tokens(8);
  const auto pin = rig.engine.pinned().reserve(8);
  const auto [branch, reused] = rig.engine.create_prompt(whole, pin.id, 0, 7);
  CHECK_EQ(reused, 7);  // the last one is computed
  rig.engine.close(branch);
  CHECK_EQ(rig.engine.create_prompt({}, pin.id, 0, 7).second, 0);
  CHECK_THROWS(rig.engine.create_prompt(whole, 99, 0, 7), InvalidRange);
  CHECK_THROWS(rig.engine.create_prompt(Tokens{999}, pin.id, 0, 7), InvalidToken);
  rig.engine.create();
  CHECK_THROWS(rig.engine.create_prompt(whole, pin.id, 0, 7), TooManyBranches);
}

void what_is_reusable_is_what_create_shares() {
  Rig rig({.config = {.max_branches = 3, .retain = 100}});
  const Tokens whole = prompt_tokens(10);
  rig.engine.close(rig.prompt(whole));
  rig.prompt({whole.begin(), whole.begin() + 4});
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    const Tokens some(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    const Pos reusable = rig.engine.n_reusable(some);
    CHECK_EQ(rig.engine.branches().size(), 1u);
    const auto [branch, reused] = rig.engine.create(some);
    CHECK_EQ(reusable, reused);
    const Pos all = std::max(static_cast<Pos>(length) - 1, 0);
    CHECK_EQ(reusable, all);
    rig.engine.close(branch);
    rig.check_state();
  }
  const BranchId before = rig.engine.create().first;
  rig.engine.n_reusable(whole);
  CHECK_EQ(rig.engine.create().first, before + 1);  // a question makes no branch
  CHECK_THROWS(rig.engine.n_reusable(whole), TooManyBranches);
}

}  // namespace

int main() {
  prompts_begin_with_rows_of_a_pin();
  a_prompt_without_all_rows_of_a_pin();
  what_is_reusable_is_what_create_shares();
  branches_come_back_and_share_what_they_shared();
  cells_in_a_row_are_reserved_where_there_are_some();
  a_busy_branch_is_held_as_it_is();
  what_does_not_fit_changes_nothing();
  a_branch_that_is_set_aside_comes_back();
  a_branch_that_went_on_is_not_set_aside();
}
