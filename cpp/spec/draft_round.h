// One round of drafting with a model: a tree for each of several branches, all grown together, one forward per level.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/cache.h"
#include "engine/drafter.h"
#include "spec/draft_tree.h"
#include "spec/level_runner.h"
#include "spec/likely_tokens.h"

namespace agentkv {

struct TreeOptions {
  std::int32_t width = 8;       // nodes per branch that a level runs: those with the greatest reach
  std::int32_t top_k = 8;       // children that each of them gets
  float min_reach = 0.01f;      // nodes that the model itself gives less than this probability are not run
  std::int32_t vocab_size = 0;  // ids from it on are padding, and never proposed; 0: the program has none
  std::int32_t depth = 0;       // levels of a draft at most; 0: as many as are asked for
};

// Work of a drafter since it was made.
struct DraftStats {
  std::uint64_t levels = 0;    // of all rounds
  std::uint64_t forwards = 0;  // that levels took: as many, unless their rows exceeded what the program takes
  std::uint64_t prefills = 0;  // forwards outside rounds
  double seconds = 0;          // inside the program
};

class DraftRound {
 public:
  // target_of: what each token of the program's vocabulary is in the target's; empty where they are the same.
  DraftRound(TreeSeqCache& cache, std::int32_t max_tokens, std::int32_t max_logits, TreeOptions options,
             std::vector<Token> target_of = {});

  void begin();
  // Cells that are not spoken for yet.
  Cell free_cells() const { return level_.free_cells(); }
  // The next branch. Its tree is empty, and what its sequence lacks is fed next, one token or more: the logits of the
  // last one are the first level.
  void add(DraftRequest& request, SeqId seq, DraftTree& tree);
  void feed(Token token, bool last);

  // forward(const LevelRows&, std::span<const std::int32_t> sources) runs rows and returns their logits. `sources`: for
  // rows that are nodes, which logits row of the level before each was drawn from; empty in the first level. The nodes
  // stay in the frontiers of their sequences. When something is thrown, all frontiers are dropped.
  template <class Forward>
  void run(Forward&& forward) {
    try {
      while (level_.rows() > 0) {
        ++levels_;
        level_.run([&](const LevelRows& rows) { return forward(rows, sources_of(rows)); },
                   [&](const LevelRows& rows, std::span<const float> logits) { absorb(rows, logits); });
        next_level();
      }
    } catch (...) {
      abandon();
      throw;
    }
    for (const Branch& branch : branches_) {
      DraftRequest& request = *branch.request;
      branch.tree->best(request.max_nodes, request.draft);
      request.levels = branch.depth;
    }
  }

  std::uint64_t levels() const { return levels_; }
  std::uint64_t forwards() const { return level_.forwards(); }
  double seconds() const { return level_.seconds(); }

 private:
  struct Branch {
    DraftRequest* request;
    SeqId seq;
    DraftTree* tree;
    std::int32_t depth = 1;  // levels drafted so far
    bool grows = true;
  };
  struct LogitsRow {
    std::uint32_t branch;
    std::int32_t node;  // -1: the branch's last token
  };

  std::span<const std::int32_t> sources_of(const LevelRows& rows) const {
    return sources_.empty() ? sources_ : std::span(sources_).subspan(rows.first, rows.tokens.size());
  }
  void absorb(const LevelRows& rows, std::span<const float> logits);
  void next_level();
  void abandon();

  TreeSeqCache& cache_;
  const TreeOptions options_;
  const std::vector<Token> target_of_;
  LevelRunner level_;
  LikelyTokens likely_;
  std::vector<Branch> branches_;
  std::vector<LogitsRow> logits_rows_;  // of the level, in order
  std::size_t absorbed_ = 0;            // of them
  std::vector<std::int32_t> sources_;   // [rows] of the level; empty in the first
  std::uint64_t levels_ = 0;
};

}  // namespace agentkv
