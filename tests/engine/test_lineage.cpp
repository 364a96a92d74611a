// Which marks hold after which verbs: against a plain record, in which every token has a name of its own.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <vector>

#include "engine/rig.h"

namespace agentkv::testing {
namespace {

struct Mark {
  Epoch epoch;
  Tokens tokens;  // before it
  int last;       // the name of the last one; 0 where there is none
};

// Few different tokens, so that histories often agree in tokens that were written apart.
class Record {
 public:
  explicit Record(unsigned seed) : rng_(seed) { add(rig_.engine.create().first, {}); }

  void run(int verbs) {
    for (int i = 0; i < verbs; ++i) {
      verb();
      mark();
      for (const Mark& mark : marks_) check(mark);
    }
  }

  static inline int held = 0, refused = 0;

 private:
  std::size_t pick(std::size_t n) { return rng_() % n; }

  BranchId any() { return std::next(names_.begin(), static_cast<std::ptrdiff_t>(pick(names_.size())))->first; }

  static int last(const std::vector<int>& names, std::size_t length) { return length ? names[length - 1] : 0; }

  void add(BranchId branch, std::vector<int> names) { names_[branch] = std::move(names); }

  void verb() {
    const BranchId id = any();
    std::vector<int>& names = names_.at(id);
    switch (pick(6)) {
      case 0: {
        const auto length = pick(names.size() + 1);
        rig_.engine.rollback(id, static_cast<std::int64_t>(length));
        names.resize(length);
        return;
      }
      case 1:
        if (names_.size() < 6) {
          const BranchId made = pick(2) ? rig_.engine.fork(id) : rig_.engine.copy(id);
          add(made, names);
        }
        return;
      case 2:
        return adopt(id, any());
      case 3: {  // as an extend that is cancelled
        const JobId job = rig_.engine.extend(id, prompt_tokens(3, pick(3), 4));
        if (pick(2)) rig_.step();
        rig_.engine.undo(job);
        return;
      }
      default:
        if (names.size() > 30) return;
        rig_.run(rig_.engine.extend(id, prompt_tokens(1 + static_cast<int>(pick(4)), pick(3), 4)));
        while (names.size() < rig_.log(id).size()) names.push_back(next_name_++);
    }
  }

  void adopt(BranchId dst, BranchId src) {
    const Tokens &ours = rig_.log(dst), &theirs = rig_.log(src);
    std::size_t same = 0;
    while (same < std::min(ours.size(), theirs.size()) && ours[same] == theirs[same]) ++same;
    std::vector<int> names(names_.at(dst).begin(), names_.at(dst).begin() + static_cast<std::ptrdiff_t>(same));
    names.insert(names.end(), names_.at(src).begin() + static_cast<std::ptrdiff_t>(same), names_.at(src).end());
    rig_.engine.adopt(dst, src);
    names_.at(dst) = names;
  }

  void mark() {
    const BranchId id = any();
    const auto [length, epoch] = rig_.engine.tip(id);
    CHECK_EQ(static_cast<std::size_t>(length), names_.at(id).size());
    for (const LogChange& change : rig_.engine.take_changes()) told_[change.branch] = change.epoch;
    CHECK_EQ(told_.at(id), epoch);
    marks_.push_back({epoch, rig_.log(id), last(names_.at(id), names_.at(id).size())});
    if (marks_.size() > 40) marks_.erase(marks_.begin());
  }

  // Of any branch that has the tokens of the mark, it says so: that includes branches which share the history.
  void check(const Mark& mark) {
    const std::size_t length = mark.tokens.size();
    for (const auto& [id, names] : names_) {
      const BranchId tried = rig_.engine.copy(id);
      if (names.size() >= length && last(names, length) == mark.last) {
        rig_.engine.rollback(tried, static_cast<std::int64_t>(length), mark.epoch);
        CHECK(rig_.log(tried) == mark.tokens);
        ++held;
      } else {
        CHECK_THROWS(rig_.engine.rollback(tried, static_cast<std::int64_t>(length), mark.epoch), InvalidRollback,
                     "rewritten", "take a new mark");
        CHECK_EQ(rig_.log(tried).size(), names.size());
        ++refused;
      }
      rig_.engine.close(tried);
    }
  }

  std::mt19937 rng_;
  Rig rig_{{.capacity = 400, .max_sequences = 8, .config = {.max_branches = 8}}};
  std::map<BranchId, std::vector<int>> names_;
  std::map<BranchId, Epoch> told_;
  std::vector<Mark> marks_;
  int next_name_ = 1;
};

void a_history_that_is_brought_back_has_its_marks_again() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(8));
  const auto [length, epoch] = rig.engine.tip(branch);
  const BranchId before = rig.engine.copy(branch);
  rig.engine.rollback(branch, 5);
  CHECK_THROWS(rig.engine.rollback(branch, length, epoch), InvalidRollback, "mark at 8", "5 tokens");
  rig.run(rig.engine.extend(branch, prompt_tokens(6, 2)));
  CHECK_THROWS(rig.engine.rollback(branch, length, epoch), InvalidRollback, "mark at 8", "11 tokens");
  rig.engine.rollback(branch, 5, epoch);  // these are as they were
  rig.engine.adopt(branch, before);
  rig.engine.rollback(branch, length, epoch);
  CHECK(rig.log(branch) == prompt_tokens(8));
}

void only_an_idle_branch_has_an_end() {
  Rig rig;
  const BranchId empty = rig.engine.create().first;
  CHECK(rig.engine.tip(empty) == std::pair(Pos{0}, Epoch{0}));
  const JobId job = rig.engine.extend(empty, prompt_tokens(4));
  CHECK_THROWS(rig.engine.tip(empty), BranchBusy);
  rig.run(job);
  CHECK_EQ(rig.engine.tip(empty).first, 4);
  rig.engine.close(empty);
  CHECK_THROWS(rig.engine.tip(empty), BranchClosed);
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  a_history_that_is_brought_back_has_its_marks_again();
  only_an_idle_branch_has_an_end();
  for (unsigned seed = 0; seed < 20; ++seed) Record(seed).run(80);
  std::printf("held: %d, refused: %d\n", Record::held, Record::refused);
  CHECK(Record::held > 1000);
  CHECK(Record::refused > 1000);
}
