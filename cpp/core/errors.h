// Every failure of every layer, in one table: a row makes a kind, the exception class of that name, and the Python
// class of that name. Each message names the value that was refused, the bound it broke and what to do.
#pragma once

#include <stdexcept>
#include <string>

#include "core/api.h"

// ROW(name, what it is in Python besides a _core.Error, what it means)
#define AGENTKV_ERRORS(ROW)                                                                                          \
  /* bookkeeping */                                                                                                  \
  ROW(CacheFull, RuntimeError, "The pool has fewer free cells than a step needs.")                                   \
  ROW(OutOfMemory, RuntimeError, "The system refused memory for keys and values; the cache is as it was.")           \
  ROW(UnknownSequence, RuntimeError, "A sequence id that is out of range or holds nothing.")                         \
  ROW(InvalidRange, RuntimeError, "Positions outside what a sequence holds, or a length it never had.")              \
  ROW(InvalidStep, RuntimeError, "A step verb out of order: a second begin, forward without begin, early commit.")   \
  ROW(InvalidTree, RuntimeError, "A draft tree whose parent does not come earlier, or accepted nodes in no chain.")  \
  /* byte layers and programs */                                                                                     \
  ROW(InvalidTensor, RuntimeError, "Shapes, dtypes or layer ids that do not fit the cache.")                         \
  ROW(RegistryError, RuntimeError, "No cache under a key, an unknown backend or policy, a key taken twice.")         \
  ROW(ProgramError, RuntimeError, "A program file that is missing, damaged, foreign, or of an unknown schema.")      \
  ROW(ForwardFailed, RuntimeError, "A forward that was started and failed; the cache is as it was before the step.") \
  /* step loop */                                                                                                    \
  ROW(StepFailed, RuntimeError, "A job ended because its part of a step failed; its branch is as before the step.")  \
  ROW(BranchBusy, RuntimeError, "A verb on a branch whose job still runs.")                                          \
  ROW(BranchClosed, RuntimeError, "A branch that was closed, or an id that no branch ever had.")                     \
  ROW(TooManyBranches, RuntimeError, "More live branches than the engine was built for.")                            \
  ROW(EmptyBranch, RuntimeError, "Logits of a branch that holds no token.")                                          \
  ROW(ContextFull, RuntimeError, "The cache has fewer free cells than the job needs.")                               \
  ROW(PositionsExhausted, RuntimeError, "More tokens than the model has positions.")                                 \
  ROW(InvalidRollback, ValueError, "A length that the branch never had.")                                            \
  ROW(InvalidToken, ValueError, "A token id outside the vocabulary.")                                                \
  ROW(InvalidSampling, ValueError, "A sampling parameter, a token limit or a stop string outside its range.")        \
  ROW(InvalidChoices, ValueError, "Choices that cannot be scored: none at all, or one without tokens.")              \
  ROW(InvalidEngine, ValueError, "Engine arguments that do not fit together.")                                       \
  /* drafters */                                                                                                     \
  ROW(InvalidDraft, ValueError, "A draft that is no tree of tokens in the vocabulary.")                              \
  ROW(InvalidDrafter, ValueError, "Options of a drafter outside their range.")

namespace agentkv {

enum class ErrorKind {
  Error,  // none of the kinds below
#define AGENTKV_ERROR_KIND(name, base, meaning) name,
  AGENTKV_ERRORS(AGENTKV_ERROR_KIND)
#undef AGENTKV_ERROR_KIND
};

struct AGENTKV_API Error : std::runtime_error {
  explicit Error(const std::string& message, ErrorKind kind = ErrorKind::Error)
      : std::runtime_error(message), kind(kind) {}

  ErrorKind kind;
};

#define AGENTKV_ERROR_CLASS(name, base, meaning)                                   \
  struct AGENTKV_API name : Error {                                                \
    explicit name(const std::string& message) : Error(message, ErrorKind::name) {} \
  };
AGENTKV_ERRORS(AGENTKV_ERROR_CLASS)
#undef AGENTKV_ERROR_CLASS

#define AGENTKV_ERROR_NAME(name, base, meaning) #name,
inline constexpr const char* kErrorNames[] = {"Error", AGENTKV_ERRORS(AGENTKV_ERROR_NAME)};
#undef AGENTKV_ERROR_NAME

inline const char* name_of(ErrorKind kind) { return kErrorNames[static_cast<int>(kind)]; }

}  // namespace agentkv
