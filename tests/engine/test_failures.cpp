// Forwards that throw, caches that fill up, jobs that are cancelled: who ends, and what is left.
#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

bool has(std::span<const std::int64_t> tokens, std::int64_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

void a_failed_forward_is_retried_branch_by_branch() {
  Rig rig;
  std::vector<BranchId> branches;
  for (std::uint64_t i = 0; i < 4; ++i) branches.push_back(rig.prompt(prompt_tokens(5, i)));
  std::vector<JobId> jobs;
  for (const BranchId b : branches) jobs.push_back(rig.engine.generate(b, {.max_tokens = 8, .ignore_eos = true}));
  rig.step();
  const Token poison = rig.log(branches[2]).back();
  const auto alone = [&](BranchId b) { return rig.log(b).back() == poison; };
  for (const std::size_t i : {0, 1, 3}) CHECK(!alone(branches[i]));
  const Tokens before = rig.log(branches[2]);
  const std::uint64_t retries = rig.engine.stats().retries;
  rig.program->fault = [&](std::span<const std::int64_t> tokens) {
    if (has(tokens, poison)) throw ForwardFailed("poisoned");
  };
  rig.step();
  rig.program->fault = nullptr;
  CHECK_EQ(rig.engine.stats().retries - retries, std::uint64_t{4});
  CHECK_EQ(rig.finished.at(jobs[2]).error->kind, ErrorKind::StepFailed);
  CHECK_EQ(rig.finished.at(jobs[2]).error->message, "poisoned");
  CHECK(rig.log(branches[2]) == before);
  CHECK(joined(prompt_tokens(5, 2), rig.finished.at(jobs[2]).tokens) == before);
  rig.drain();
  for (const std::size_t i : {0, 1, 3}) {
    CHECK(!rig.finished.at(jobs[i]).error);
    CHECK_EQ(rig.finished.at(jobs[i]).tokens.size(), std::size_t{8});
  }
  CHECK(rig.generate(branches[2], 3).tokens == rig.expected(before, 3));  // it can go on
}

void a_passing_fault_ends_nobody() {
  Rig rig;
  const BranchId a = rig.prompt(prompt_tokens(5, 1)), b = rig.prompt(prompt_tokens(5, 2));
  const JobId one = rig.engine.generate(a, {.max_tokens = 4}), two = rig.engine.generate(b, {.max_tokens = 4});
  bool thrown = false;
  rig.program->fault = [&](std::span<const std::int64_t>) {
    if (!std::exchange(thrown, true)) throw std::runtime_error("once");  // any exception, not only the typed one
  };
  CHECK(rig.run(one).tokens == rig.expected(prompt_tokens(5, 1), 4));
  CHECK(rig.run(two).tokens == rig.expected(prompt_tokens(5, 2), 4));
}

void a_failed_extend_is_undone_as_a_whole() {
  for (const bool pending : {false, true}) {
    Rig rig;
    const BranchId branch = rig.prompt(prompt_tokens(5));
    if (pending) rig.generate(branch, 1);
    const Tokens before = rig.log(branch);
    int left = 2;
    rig.program->fault = [&](std::span<const std::int64_t>) {
      if (left-- == 0) throw ForwardFailed("third chunk");
    };
    const Finished f = rig.run(rig.engine.extend(branch, prompt_tokens(90, 2)));
    CHECK_EQ(f.error->kind, ErrorKind::StepFailed);
    CHECK_EQ(f.error->message, "third chunk");
    CHECK(rig.log(branch) == before);
    CHECK_EQ(rig.cells->used(), static_cast<Cell>(before.size()));
    rig.program->fault = nullptr;
    CHECK(rig.run(rig.engine.logits(branch)).logits == rig.row(before));
    CHECK(rig.generate(branch, 3).tokens == rig.expected(before, 3));
  }
}

void wrong_numbers_of_logits_are_a_failure() {
  class Short final : public ModelRunner {
   public:
    explicit Short(std::shared_ptr<Cells> cells) : cells_(std::move(cells)) {}
    const RunnerInfo& info() const override { return info_; }
    std::span<const float> forward(std::span<const std::int64_t>, std::span<const std::int64_t> positions,
                                   std::span<const std::int64_t>) override {
      cells_->plan(positions, 0);
      return row_;
    }

   private:
    const RunnerInfo info_{.vocab_size = 5, .max_tokens = 8, .max_logits = 8};
    const std::shared_ptr<Cells> cells_;
    const std::vector<float> row_{0, 0, 0};
  };
  auto cells = std::make_shared<Cells>(16);
  Engine engine(std::make_shared<Short>(cells), cells, Vocabulary(5, {}, {}, {}));
  engine.extend(engine.create().first, Tokens{1, 2});
  const StepReport report = engine.step();
  CHECK_EQ(report.finished.at(0).error->kind, ErrorKind::StepFailed);
  CHECK(report.finished[0].error->message.find("3 logits, but 5") != std::string::npos);
  CHECK_EQ(cells->used(), 0);
}

void a_full_cache_ends_generations_one_by_one() {
  RigOptions options;
  options.capacity = 20;
  Rig rig(options);
  const BranchId a = rig.prompt(prompt_tokens(8, 1)), b = rig.prompt(prompt_tokens(5, 2));
  const JobId one = rig.engine.generate(a, {.max_tokens = 50, .ignore_eos = true});
  const JobId two = rig.engine.generate(b, {.max_tokens = 50, .ignore_eos = true});
  rig.drain();
  CHECK_EQ(std::string(rig.finished[one].finish_reason), "context_full");
  CHECK_EQ(std::string(rig.finished[two].finish_reason), "context_full");
  CHECK(!rig.finished[one].error && !rig.finished[two].error);
  CHECK_EQ(rig.cells->used(), 20);
  CHECK_EQ(rig.finished[one].tokens.size() + rig.finished[two].tokens.size(), std::size_t{7 + 2});
  CHECK(rig.log(a) == joined(prompt_tokens(8, 1), rig.finished[one].tokens));
  const Tokens history = rig.log(a);
  rig.engine.close(b);
  CHECK(rig.generate(a, 3).tokens == rig.expected(history, 3));
}

void an_extend_that_cannot_fit_is_refused_at_once() {
  RigOptions options;
  options.capacity = 20;
  Rig rig(options);
  const BranchId branch = rig.prompt(prompt_tokens(8));
  CHECK_THROWS(rig.engine.extend(branch, prompt_tokens(13)), ContextFull, "13", "12 of 20");
  rig.generate(branch, 1);
  CHECK_THROWS(rig.engine.extend(branch, prompt_tokens(12)), ContextFull, "12 tokens needs 13");
  const Tokens before = rig.log(branch);
  const JobId fits = rig.engine.extend(branch, prompt_tokens(11));
  const BranchId other = rig.engine.create().first;
  const JobId late = rig.engine.extend(other, prompt_tokens(6, 3));  // the cells are free still, but spoken for
  CHECK(!rig.run(fits).error);
  CHECK(rig.run(late).error->kind == ErrorKind::ContextFull);
  CHECK(rig.log(other).empty());
  CHECK_EQ(rig.cells->used(), 20);
  CHECK(rig.log(branch) == joined(before, prompt_tokens(11)));
}

void a_full_cache_fails_logits_and_keeps_the_branch() {
  RigOptions options;
  options.capacity = 8;
  Rig rig(options);
  const BranchId branch = rig.prompt(prompt_tokens(7));
  rig.generate(branch, 1);
  rig.prompt({40});
  const Finished f = rig.run(rig.engine.logits(branch));
  CHECK_EQ(f.error->kind, ErrorKind::ContextFull);
  CHECK_EQ(rig.log(branch).size(), std::size_t{8});
  // After a rollback the last token is fed again, and its old cell is another branch's too.
  const BranchId twin = rig.engine.fork(branch);
  rig.engine.rollback(branch, 6);
  CHECK(rig.run(rig.engine.logits(branch)).error->kind == ErrorKind::ContextFull);
  CHECK_EQ(std::string(rig.generate(branch, 2).finish_reason), "context_full");
  CHECK_EQ(rig.log(branch).size(), std::size_t{6});
  rig.engine.close(twin);
  CHECK(rig.generate(branch, 1).tokens == rig.expected(prompt_tokens(6), 1));
}

void cancelling_a_generation_keeps_what_it_made() {
  Rig rig;
  const Tokens prompt = prompt_tokens(5);
  const BranchId branch = rig.prompt(prompt);
  const JobId job = rig.engine.generate(branch, {.max_tokens = 50, .ignore_eos = true});
  for (int i = 0; i < 4; ++i) rig.step();
  rig.engine.cancel(job);
  rig.engine.cancel(job);
  rig.engine.rollback(branch, rig.engine.branch(branch).length());  // settled: the branch is not busy
  const Finished f = rig.run(job);
  CHECK_EQ(std::string(f.finish_reason), "cancelled");
  CHECK(!f.error);
  CHECK_EQ(f.tokens.size(), std::size_t{5});
  CHECK_EQ(f.text.size(), std::size_t{5});
  CHECK(rig.log(branch) == joined(prompt, f.tokens));
  const Tokens history = rig.log(branch);
  CHECK(rig.generate(branch, 3).tokens == rig.expected(history, 3));
  rig.engine.cancel(job);
  CHECK(rig.step().idle);
}

void cancelling_an_extend_undoes_it() {
  Rig rig;
  const Tokens prompt = prompt_tokens(5);
  const BranchId branch = rig.prompt(prompt);
  const JobId job = rig.engine.extend(branch, prompt_tokens(90, 3));
  rig.step();
  CHECK_EQ(rig.log(branch).size(), std::size_t{37});
  rig.engine.cancel(job);
  CHECK(rig.log(branch) == prompt);
  CHECK_EQ(rig.cells->used(), 5);
  CHECK_EQ(std::string(rig.run(job).finish_reason), "cancelled");
  const int calls = rig.program->calls;
  CHECK(rig.run(rig.engine.logits(branch)).logits == rig.row(prompt));
  CHECK_EQ(rig.program->calls, calls);  // the row of the old end came back with it
}

void closing_a_busy_branch_cancels_its_job() {
  Rig rig;
  const BranchId a = rig.prompt(prompt_tokens(5, 1)), b = rig.prompt(prompt_tokens(5, 2));
  const JobId doomed = rig.engine.generate(a, {.max_tokens = 50, .ignore_eos = true});
  const JobId other = rig.engine.generate(b, {.max_tokens = 6});
  const BranchId c = rig.engine.create().first;
  const JobId prefill = rig.engine.extend(c, prompt_tokens(80, 4));
  rig.step();
  rig.engine.close(a);
  rig.engine.close(c);
  CHECK_EQ(rig.engine.branches().size(), std::size_t{1});
  rig.drain();
  CHECK_EQ(std::string(rig.finished[doomed].finish_reason), "cancelled");
  CHECK_EQ(std::string(rig.finished[prefill].finish_reason), "cancelled");
  CHECK(rig.finished[other].tokens == rig.expected(prompt_tokens(5, 2), 6));
}

void engines_check_what_they_are_made_of() {
  auto cells = std::make_shared<Cells>(16);
  const auto program = [&](RunnerInfo info) { return std::make_shared<ReferenceRunner>(cells, info); };
  const Vocabulary none(4, {}, {}, {});
  CHECK_THROWS(Engine(nullptr, cells, none), InvalidEngine, "model runner");
  CHECK_THROWS(Engine(program({4, 8, 8}), std::shared_ptr<TreeSeqCache>(), none), InvalidEngine, "cache");
  CHECK_THROWS(Engine(program({4, 0, 8}), cells, none), InvalidEngine, "max_tokens 0");
  CHECK_THROWS(Engine(program({4, 8, 8}), cells, none, {.max_batch_tokens = 0}), InvalidEngine, "max_batch_tokens");
}

}  // namespace

int main() {
  a_failed_forward_is_retried_branch_by_branch();
  a_passing_fault_ends_nobody();
  a_failed_extend_is_undone_as_a_whole();
  wrong_numbers_of_logits_are_a_failure();
  a_full_cache_ends_generations_one_by_one();
  an_extend_that_cannot_fit_is_refused_at_once();
  a_full_cache_fails_logits_and_keeps_the_branch();
  cancelling_a_generation_keeps_what_it_made();
  cancelling_an_extend_undoes_it();
  closing_a_busy_branch_cancels_its_job();
  engines_check_what_they_are_made_of();
}
