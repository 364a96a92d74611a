// A process has one id; a forked child has another.
#include "cpp/check.h"
#include "platform/process.h"

#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace agentkv::platform;

int main() {
  const std::int64_t mine = process_id();
  CHECK(mine > 0);
  CHECK_EQ(process_id(), mine);
#ifndef _WIN32
  CHECK_EQ(mine, getpid());
  const pid_t child = fork();
  if (child == 0) _exit(process_id() == mine ? 1 : 7);
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 7);
#endif
}
