// Shared library with the C API of microndla.h, loaded by its path.
#pragma once

#include "../include/microndla.h"

#include <memory>
#include <string>

namespace torchmdla::mdla {

// Functions of the API that this runtime calls.
struct Api {
  decltype(&::ie_create) ie_create;
  decltype(&::ie_free) ie_free;
  decltype(&::ie_setflag) ie_setflag;
  decltype(&::ie_getinfo) ie_getinfo;
  decltype(&::ie_compile) ie_compile;
  decltype(&::ie_compile_vfp) ie_compile_vfp;
  decltype(&::ie_init) ie_init;
  decltype(&::ie_run) ie_run;
  decltype(&::ie_run_sw) ie_run_sw;
  decltype(&::ie_putinput) ie_putinput;
  decltype(&::ie_getresult) ie_getresult;
};

// Return the library at `path`, which stays loaded until the process exits. Throw Fault if it
// cannot be loaded, lacks a function, or has a version other than that of microndla.h.
const Api& library(const std::string& path);

// Deleter of contexts.
struct Free {
  decltype(&::ie_free) function;
  void operator()(void* cmem) const { function(cmem); }
};

using Cmem = std::unique_ptr<void, Free>;

// Create a context with flags (pairs, terminated by null). Throw Fault if that fails.
Cmem create(const Api& api, const char* const* flags);

// Return the text of a fault of `function`, with the library's own message if it has one.
std::string fault_of(const Api& api, const char* function, void* cmem);

} // namespace torchmdla::mdla
