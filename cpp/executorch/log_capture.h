// ExecuTorch reports why something failed only to its log. A capture turns those lines into the text of an exception.
#pragma once

#include <string>

namespace agentkv {

// While one lives, error lines that this thread logs are kept instead of printed. Captures nest.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // The lines so far, oldest first, joined by "; ". Empty when nothing was logged.
  std::string text() const;

 private:
  friend void keep_log_line(std::string line);
  LogCapture* outer_;
  std::string text_;
  int lines_ = 0;
};

// Routes ExecuTorch's log: errors to the capture of the thread or else to where they went before, the rest nowhere.
// Harmless when called again; called before each load, since another module of the process may have taken the log over.
void install_log_capture();

}  // namespace agentkv
