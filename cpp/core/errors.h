// One exception per failure. Each message names the value that was refused and the bound it broke.
#pragma once

#include <stdexcept>
#include <string>

#include "core/api.h"

namespace agentkv {

struct AGENTKV_API Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The pool has fewer free cells than a step needs.
struct AGENTKV_API CacheFull : Error {
  using Error::Error;
};
// More live sequences than the cache was built for.
struct AGENTKV_API TooManySequences : Error {
  using Error::Error;
};
// A sequence id that is out of range or holds nothing.
struct AGENTKV_API UnknownSequence : Error {
  using Error::Error;
};
// Positions outside what a sequence holds, or a length it never had.
struct AGENTKV_API InvalidRange : Error {
  using Error::Error;
};
// A step verb out of order: begin twice, forward without begin, commit without forward.
struct AGENTKV_API InvalidStep : Error {
  using Error::Error;
};
// A draft tree whose parent does not come earlier, or an accepted list that is not a chain.
struct AGENTKV_API InvalidTree : Error {
  using Error::Error;
};
// Shapes, dtypes or layer ids that do not fit the cache.
struct AGENTKV_API InvalidTensor : Error {
  using Error::Error;
};
// No cache under a key, no builder for a (backend, kind), a key taken twice.
struct AGENTKV_API RegistryError : Error {
  using Error::Error;
};
// A program file that is missing, damaged, foreign, or of an unknown schema version.
struct AGENTKV_API ProgramError : Error {
  using Error::Error;
};
// A forward that was started and failed; the cache is as it was before the step.
struct AGENTKV_API ForwardFailed : Error {
  using Error::Error;
};

}  // namespace agentkv
