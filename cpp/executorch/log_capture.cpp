#include "executorch/log_capture.h"

#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <mutex>
#include <utility>

namespace agentkv {
namespace {

constexpr int kMaxLines = 8;

thread_local LogCapture* current_capture = nullptr;
pal_emit_log_message_method previous_sink = nullptr;

}  // namespace

void keep_log_line(std::string line) {
  LogCapture& capture = *current_capture;
  if (capture.lines_++ >= kMaxLines) return;
  if (!capture.text_.empty()) capture.text_ += "; ";
  capture.text_ += line;
}

namespace {

void emit(et_timestamp_t timestamp, et_pal_log_level_t level, const char* filename, const char* function, size_t line,
          const char* message, size_t length) {
  if (level != kError && level != kFatal) return;
  if (current_capture != nullptr) {
    keep_log_line(std::string(message, length));
  } else if (previous_sink != nullptr) {
    previous_sink(timestamp, level, filename, function, line, message, length);
  }
}

}  // namespace

LogCapture::LogCapture() : outer_(std::exchange(current_capture, this)) {}
LogCapture::~LogCapture() { current_capture = outer_; }
std::string LogCapture::text() const { return text_; }

void install_log_capture() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  executorch::runtime::runtime_init();
  const auto* pal = executorch::runtime::get_pal_impl();
  if (pal != nullptr && pal->emit_log_message == &emit) return;
  if (pal != nullptr) previous_sink = pal->emit_log_message;
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(&emit, "log_capture.cpp"));
}

}  // namespace agentkv
