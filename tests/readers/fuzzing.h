// Common code of the fuzzers of readers. It mutates inputs, runs them, and keeps those that reach
// new code.
//
// The first byte of an input selects the target for the others. With clang, a fuzzer is a target of
// libFuzzer. With any other compiler, it is a separate program with the same command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fuzzing {

struct Target {
  uint8_t letter;
  bool (*accepts)(std::string_view bytes); // returns false if the bytes are refused
};

// Targets of the fuzzer. Each fuzzer defines them.
extern const std::vector<Target> kTargets;

} // namespace fuzzing
