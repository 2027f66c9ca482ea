// A shared library with the C API of microndla.h, found by its path.
#pragma once

#include "../include/microndla.h"

#include <memory>
#include <string>

namespace torchmdla::mdla {

// The functions that are called, by the names of the API.
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

// The library at `path`, which stays loaded for the life of the process. Throws Fault: there is
// none, it lacks a function, or it has another version than microndla.h.
const Api& library(const std::string& path);

// Frees contexts.
struct Free {
  decltype(&::ie_free) function;
  void operator()(void* cmem) const { function(cmem); }
};

using Cmem = std::unique_ptr<void, Free>;

// A new context with flags (pairs, ended by null). Throws Fault.
Cmem create(const Api& api, const char* const* flags);

// The fault of `function`, with what the library says of it where it does.
std::string fault_of(const Api& api, const char* function, void* cmem);

} // namespace torchmdla::mdla
