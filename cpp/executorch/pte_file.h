// Whether a file can be an ExecuTorch program at all, decided before any of it is parsed.
#pragma once

#include <string>

namespace agentkv {

// Throws ProgramError when the file is missing, unreadable, not a .pte, of a file format this runtime does not read, or
// shorter than its own header says.
void check_pte_file(const std::string& path);

}  // namespace agentkv
