// Drafting for the generations of one step, and what the drafters are told of the branches.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/branch.h"
#include "engine/drafter.h"
#include "engine/forward_cost.h"
#include "engine/pace.h"
#include "engine/stats.h"

namespace agentkv {

// An attached drafter.
struct DraftSource {
  std::shared_ptr<Drafter> drafter;
  DrafterPace pace{};
  std::string error;  // what it last threw when it was told something; the next generation that asks it fails with it
};

// What one generation wants, and gets, of speculation.
class Speculator {
 public:
  explicit Speculator(DraftSource& source) : source(source), pace(source.pace) {}

  DraftSource& source;
  Pace pace;
  std::int32_t depth = 0;  // levels asked for in this round; 0: none
  Draft draft;             // what is verified in this round
};

struct DraftWish {
  Job* job;
  const Branch* branch;
  Speculator* speculator;
  std::int32_t max_depth;
};

class Speculation {
 public:
  explicit Speculation(Stats& stats) : stats_(stats) {}

  // The source of a drafter, attached now if it was not.
  DraftSource& attach(std::shared_ptr<Drafter> drafter);

  void clear_wishes() { wishes_.clear(); }
  void wish(const DraftWish& wish) { wishes_.push_back(wish); }

  // Drafts for the wishes, and keeps what pays in a forward that has `rows` rows anyway and room for `room` more.
  // Returns how many nodes that is. A drafter that throws fails the jobs that asked it.
  std::size_t propose(std::size_t rows, std::size_t room);

  // What came of a draft that was verified: the chain of its nodes that was accepted.
  void learn(Speculator& speculator, std::span<const std::int32_t> accepted);

  ForwardCost cost;
  // Seconds spent in drafters since the last call.
  double take_seconds() { return std::exchange(seconds_, 0.0); }

  // What drafters are told; one that throws is reported to the next generation that asks it.
  void observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features);
  void shared(BranchId src, BranchId dst, Pos length);
  void truncated(BranchId branch, Pos length);
  void closed(BranchId branch);
  bool empty() const { return sources_.empty(); }
  std::size_t size() const { return sources_.size(); }

 private:
  template <class What>
  void tell(What&& what);
  void ask(DraftSource& source, std::size_t rows, std::size_t room);
  std::size_t keep_what_pays(std::size_t rows, std::size_t room);
  std::size_t cut_to_kept(Speculator& speculator, std::vector<bool>& kept, bool has_room);

  struct Candidate {
    float probability;
    std::uint32_t wish;
    std::int32_t node;
  };

  Stats& stats_;
  double seconds_ = 0;
  std::vector<std::unique_ptr<DraftSource>> sources_;
  std::vector<DraftWish> wishes_;
  std::vector<DraftRequest> requests_;
  std::vector<std::uint32_t> asked_;  // the wish of each request
  std::vector<float> probabilities_;
  std::vector<Candidate> candidates_;
  std::vector<std::vector<bool>> kept_;  // [wishes] of the nodes of each
  std::vector<std::int32_t> new_index_;
};

}  // namespace agentkv
