// Shared by sessions over models and over draft heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/cache_builders.h"
#include "executorch/pte_module.h"

namespace agentkv {

// A cache for the layers of a program. Throws RegistryError when the program's backend or the policy is not in this
// process, InvalidRange or InvalidTensor for options out of range.
BuiltCache build_cache(const std::string& backend_id, const KvArchitecture& model, const CacheOptions& options);

// Throws InvalidTensor for rows that do not fit a program of these bounds.
void check_rows(std::size_t n_tokens, std::size_t n_positions, std::span<const std::int64_t> logits_indices,
                std::int32_t max_tokens, std::int32_t max_logits);

}  // namespace agentkv
