// A file that is mapped into memory, and whether it is still what was opened.
#pragma once

#include <cstdint>
#include <string>

#include "platform/file.h"

namespace agentkv {

// Reading a mapped file that was cut short stops the process, and one that was overwritten reads as something else.
class OpenedFile {
 public:
  // The file at `path` as it is now. Throws ProgramError where there is none.
  explicit OpenedFile(std::string path);

  std::uint64_t size() const { return opened_.size; }

  // Throws ProgramError, naming the file and what to do, where it was written to since. A path that leads to another
  // file by now is no fault: what was mapped stays whole when a new file is renamed into its place.
  void check_unchanged() const;

 private:
  std::string path_;
  platform::FileState opened_;
};

}  // namespace agentkv
