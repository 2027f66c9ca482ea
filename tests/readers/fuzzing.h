// What the fuzzers of readers share: their inputs are damaged, run, and kept where they reach
// something new.
//
// The first byte of an input says what the others are. With clang a fuzzer is a target of
// libFuzzer; any other compiler makes a program of its own that takes the same command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fuzzing {

struct Target {
  uint8_t letter;
  bool (*accepts)(std::string_view bytes); // false where the bytes are refused
};

// Each fuzzer defines its own.
extern const std::vector<Target> kTargets;

} // namespace fuzzing
