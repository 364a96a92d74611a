#include "executorch/opened_file.h"

#include <sys/stat.h>

#include <utility>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

OpenedFile::OpenedFile(std::string path) : path_(std::move(path)) {
  if (!read(opened_)) throw ProgramError(path_ + ": cannot be read. Copy it again or export the model again");
}

void OpenedFile::check_unchanged() const {
  State now;
  if (!read(now) || now.device != opened_.device || now.inode != opened_.inode) return;
  if (now.size == opened_.size && now.written == opened_.written) return;
  throw ProgramError(error_text(path_, ": written to while it was open: ", opened_.size, " bytes then, ", now.size,
                                " now. Leave the Context and open the model again; to replace a program, rename "
                                "another file into its place, as `agentkv export` does"));
}

bool OpenedFile::read(State& state) const {
  struct stat status{};
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path_, error);
  if (error || stat(path_.c_str(), &status) != 0) return false;
  state = {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
           static_cast<std::uint64_t>(status.st_size), written};
  return true;
}

}  // namespace agentkv
