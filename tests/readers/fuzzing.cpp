#include "fuzzing.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::minstd_rand;

constexpr size_t kMostBytes = 1 << 16;

bool accepts(const uint8_t* data, size_t size) {
  for (const fuzzing::Target& target : fuzzing::kTargets)
    if (size > 0 && data[0] == target.letter)
      return target.accepts({reinterpret_cast<const char*>(data) + 1, size - 1});
  return false;
}

// ---- mutations of numbers of 8 bytes ----

int64_t odd_number(Random& random) {
  int64_t power = int64_t{1} << random() % 63;
  switch (random() % 6) {
  case 0:
    return static_cast<int64_t>(random() % 4) - 1;
  case 1:
    return power;
  case 2:
    return power - 1;
  case 3:
    return -power;
  case 4:
    return std::numeric_limits<int64_t>::max() - static_cast<int64_t>(random() % 64);
  default:
    return std::numeric_limits<int64_t>::min() + static_cast<int64_t>(random() % 64);
  }
}

// Change a number at any position: texts of other lengths before a field make it unaligned.
void change_number(Bytes& bytes, Random& random) {
  if (bytes.size() < sizeof(int64_t)) return;
  auto place = [&] { return bytes.data() + random() % (bytes.size() - sizeof(int64_t) + 1); };
  uint64_t number = 0;
  uint8_t* at = place();
  switch (random() % 4) {
  case 0:
    number = static_cast<uint64_t>(odd_number(random));
    break;
  case 1: // a copy of another number
    std::memcpy(&number, place(), sizeof number);
    break;
  default: // a slightly different number
    std::memcpy(&number, at, sizeof number);
    number += random() % 33 - uint64_t{16};
  }
  std::memcpy(at, &number, sizeof number);
}

void change(Bytes& bytes, Random& random) {
  size_t at = random() % bytes.size(), count = std::min<size_t>(random() % 64, bytes.size() - at);
  auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random() % 8) {
  case 0:
    bytes[at] ^= static_cast<uint8_t>(1 << random() % 8);
    break;
  case 1:
    bytes[at] = static_cast<uint8_t>(random());
    break;
  case 2:
    if (count < bytes.size()) bytes.erase(first, first + static_cast<std::ptrdiff_t>(count));
    break;
  case 3: {
    Bytes twice(first, first + static_cast<std::ptrdiff_t>(count));
    bytes.insert(first, twice.begin(), twice.end());
    break;
  }
  default:
    change_number(bytes, random);
  }
  if (bytes.size() > kMostBytes) bytes.resize(kMostBytes);
}

} // namespace

#ifdef WITH_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  accepts(data, size);
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most,
                                          unsigned int seed) {
  Random random(seed);
  if (size == 0 || random() % 2) return LLVMFuzzerMutate(data, size, most);
  Bytes bytes(data, data + size);
  for (size_t times = 1 + random() % 4; times > 0; --times)
    change(bytes, random);
  size_t made = std::min(bytes.size(), most);
  std::memcpy(data, bytes.data(), made);
  return made;
}

#else

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

namespace fs = std::filesystem;

// Code addresses that were reached, by their low bits.
constexpr size_t kPlaces = 1 << 20;
bool reached[kPlaces];
bool is_new = false;

Bytes current;

void keep_current() {
  std::ofstream("crash-input", std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()),
             static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in crash-input\n");
}

void read_inputs(const fs::path& path, std::vector<Bytes>& inputs) {
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path))
      read_inputs(entry.path(), inputs);
    return;
  }
  std::ifstream file(path, std::ios::binary);
  inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// Run `current` and return whether it was accepted. Set `is_new` if it reached new code.
bool run_current() {
  is_new = false;
  return accepts(current.data(), current.size());
}

// Save an input for the next run of the fuzzer.
void keep_in(const fs::path& folder, const Bytes& input) {
  const auto hash =
      std::hash<std::string_view>{}({reinterpret_cast<const char*>(input.data()), input.size()});
  std::ofstream(folder / std::to_string(hash), std::ios::binary)
      .write(reinterpret_cast<const char*>(input.data()),
             static_cast<std::streamsize>(input.size()));
}

} // namespace

// gcc's library for undefined behaviour calls it. Failures call abort(), so that the input is
// saved.
extern "C" const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}

// gcc's instrumentation calls it at the beginning of each basic block.
extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) % kPlaces;
  is_new = is_new || !reached[place];
  reached[place] = true;
}

// Run the fuzzer. Its arguments are -max_total_time=SECONDS, and files and folders of initial
// inputs. Inputs that reach new code are saved in the first folder.
int main(int count, char** arguments) {
  using Clock = std::chrono::steady_clock;
  int64_t seconds = 0, runs = 0, accepted = 0;
  std::vector<Bytes> inputs, whole; // `whole`: accepted inputs, from which others are derived
  fs::path folder;
  const std::string limit = "-max_total_time=";
  for (int index = 1; index < count; ++index) {
    std::string argument = arguments[index];
    if (argument.starts_with(limit))
      seconds = std::stoll(argument.substr(limit.size()));
    else if (!argument.starts_with("-")) {
      read_inputs(argument, inputs);
      if (folder.empty() && fs::is_directory(argument)) folder = argument;
    }
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(keep_current);
#endif
  std::signal(SIGABRT, [](int) { keep_current(); });
  for (const Bytes& input : inputs) {
    current = input;
    if (run_current()) whole.push_back(input);
  }
  std::printf("%zu of %zu inputs accepted\n", whole.size(), inputs.size());
  std::erase_if(inputs, [](const Bytes& input) { return input.empty(); });
  if (seconds == 0 || inputs.empty()) return 0;
  Random random(std::random_device{}());
  constexpr size_t kMostWhole = 20000;
  const size_t seeds = inputs.size();
  for (auto end = Clock::now() + std::chrono::seconds(seconds); Clock::now() < end; ++runs) {
    const auto& from = whole.empty() || random() % 2 ? inputs : whole;
    current = from[random() % from.size()];
    for (size_t times = 1 + random() % 4; times > 0; --times)
      change(current, random);
    if (run_current()) {
      ++accepted;
      if (whole.size() < kMostWhole && random() % 16 == 0) whole.push_back(current);
    }
    if (!is_new) continue;
    inputs.push_back(current);
    if (!folder.empty()) keep_in(folder, current);
  }
  std::printf("Done %lld runs in %lld second(s), %lld accepted, %zu inputs reached something new\n",
              static_cast<long long>(runs), static_cast<long long>(seconds),
              static_cast<long long>(accepted), inputs.size() - seeds);
}

#endif
