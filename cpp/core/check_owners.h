// What the checks of owners throw: tables that do not agree are a fault of this program, whoever called it.
#pragma once

#include <stdexcept>

#include "core/message.h"

namespace agentkv {

template <class... Parts>
void owners_agree(bool agree, const Parts&... parts) {
  if (!agree) throw std::logic_error(error_text("owners: ", parts...));
}

}  // namespace agentkv
