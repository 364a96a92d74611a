// What the step loop refuses. Each message names the value, the bound it broke and what to do.
#pragma once

#include "core/errors.h"

namespace agentkv {

// A verb on a branch whose job still runs.
struct BranchBusy : Error {
  using Error::Error;
};
// A branch that was closed, or an id that no branch ever had.
struct BranchClosed : Error {
  using Error::Error;
};
// More live branches than the engine was built for.
struct TooManyBranches : Error {
  using Error::Error;
};
// A length that the branch never had.
struct InvalidRollback : Error {
  using Error::Error;
};
// Logits of a branch that holds no token.
struct EmptyBranch : Error {
  using Error::Error;
};
// The cache has fewer free cells than the job needs.
struct ContextFull : Error {
  using Error::Error;
};
// More tokens than the model has positions.
struct PositionsExhausted : Error {
  using Error::Error;
};
// A token id outside the vocabulary.
struct InvalidToken : Error {
  using Error::Error;
};
// A sampling parameter, a token limit or a stop string outside its range.
struct InvalidSampling : Error {
  using Error::Error;
};
// Choices that cannot be scored: none at all, or one without tokens.
struct InvalidChoices : Error {
  using Error::Error;
};
// A draft that is no tree of tokens in the vocabulary.
struct InvalidDraft : Error {
  using Error::Error;
};
// Engine arguments that do not fit together.
struct InvalidEngine : Error {
  using Error::Error;
};

}  // namespace agentkv
