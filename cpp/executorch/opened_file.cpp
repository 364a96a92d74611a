#include "executorch/opened_file.h"

#include <utility>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

OpenedFile::OpenedFile(std::string path) : path_(std::move(path)) {
  const auto found = platform::file_state(path_);
  if (!found) throw ProgramError(path_ + ": cannot be read. Copy it again or export the model again");
  opened_ = *found;
}

void OpenedFile::check_unchanged() const {
  const auto now = platform::file_state(path_);
  if (!now || now->device != opened_.device || now->inode != opened_.inode) return;
  if (now->size == opened_.size && now->written == opened_.written) return;
  throw ProgramError(error_text(path_, ": written to while it was open: ", opened_.size, " bytes then, ", now->size,
                                " now. Leave the Context and open the model again; to replace a program, rename "
                                "another file into its place, as `agentkv export` does"));
}

}  // namespace agentkv
