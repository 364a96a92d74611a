// The core is a shared library that every backend links. What other libraries catch, derive from or look up by type
// must be one type in the whole process, whatever visibility they are built with.
#pragma once

#define AGENTKV_API __attribute__((visibility("default")))
