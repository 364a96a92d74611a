// Error text from pieces: error_text("sequence ", id, " is out of range").
#pragma once

#include <sstream>
#include <string>

namespace agentkv {

template <class... Parts>
std::string error_text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace agentkv
