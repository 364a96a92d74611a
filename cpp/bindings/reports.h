// The report of a step as Python sees it.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/log_change.h"
#include "engine/report.h"

namespace agentkv {

// A report whose lists are Python's, so that reading them twice costs and changes nothing.
struct Report {
  StepReport step;
  nanobind::list emitted;
  nanobind::list finished;
};

Report to_report(StepReport step);

}  // namespace agentkv
