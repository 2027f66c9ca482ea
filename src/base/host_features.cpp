#include "host_features.h"

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <utility>

#ifdef __x86_64__
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace torchmdla {

namespace {

// State that the system must save when threads switch (XCR0; Intel's manual, volume 1, 13.3).
enum KeptState : uint64_t { none = 0, avx = 0x6, avx512 = 0xe6, amx = 0x60000 };

enum Register { eax, ebx, ecx, edx };

struct Feature {
  std::string_view name;
  uint32_t leaf, subleaf;
  Register in;
  int bit;
  KeptState state = none;
};

// Places of features in CPUID (Intel's manual, volume 2, CPUID; AMD's, volume 3, appendix E).
constexpr Feature features[] = {
    {"sse3", 1, 0, ecx, 0},
    {"ssse3", 1, 0, ecx, 9},
    {"fma", 1, 0, ecx, 12, avx},
    {"cx16", 1, 0, ecx, 13},
    {"sse4.1", 1, 0, ecx, 19},
    {"sse4.2", 1, 0, ecx, 20},
    {"crc32", 1, 0, ecx, 20},
    {"movbe", 1, 0, ecx, 22},
    {"popcnt", 1, 0, ecx, 23},
    {"avx", 1, 0, ecx, 28, avx},
    {"f16c", 1, 0, ecx, 29, avx},
    {"cx8", 1, 0, edx, 8},
    {"cmov", 1, 0, edx, 15},
    {"mmx", 1, 0, edx, 23},
    {"fxsr", 1, 0, edx, 24},
    {"sse", 1, 0, edx, 25},
    {"sse2", 1, 0, edx, 26},
    {"bmi", 7, 0, ebx, 3},
    {"avx2", 7, 0, ebx, 5, avx},
    {"bmi2", 7, 0, ebx, 8},
    {"avx512f", 7, 0, ebx, 16, avx512},
    {"avx512dq", 7, 0, ebx, 17, avx512},
    {"avx512ifma", 7, 0, ebx, 21, avx512},
    {"avx512cd", 7, 0, ebx, 28, avx512},
    {"avx512bw", 7, 0, ebx, 30, avx512},
    {"avx512vl", 7, 0, ebx, 31, avx512},
    {"avx512vbmi", 7, 0, ecx, 1, avx512},
    {"avx512vbmi2", 7, 0, ecx, 6, avx512},
    {"gfni", 7, 0, ecx, 8},
    {"vpclmulqdq", 7, 0, ecx, 10, avx},
    {"avx512vnni", 7, 0, ecx, 11, avx512},
    {"avx512bitalg", 7, 0, ecx, 12, avx512},
    {"avx512vpopcntdq", 7, 0, ecx, 14, avx512},
    {"avx512vp2intersect", 7, 0, edx, 8, avx512},
    {"amx-bf16", 7, 0, edx, 22, amx},
    {"avx512fp16", 7, 0, edx, 23, avx512},
    {"amx-tile", 7, 0, edx, 24, amx},
    {"amx-int8", 7, 0, edx, 25, amx},
    {"avxvnni", 7, 1, eax, 4, avx},
    {"avx512bf16", 7, 1, eax, 5, avx512},
    {"amx-fp16", 7, 1, eax, 21, amx},
    {"avxifma", 7, 1, eax, 23, avx},
    {"avxvnniint8", 7, 1, edx, 4, avx},
    {"avxneconvert", 7, 1, edx, 5, avx},
    {"avxvnniint16", 7, 1, edx, 10, avx},
    {"sahf", 0x80000001, 0, ecx, 0},
    {"lzcnt", 0x80000001, 0, ecx, 5},
    {"sse4a", 0x80000001, 0, ecx, 6},
    {"xop", 0x80000001, 0, ecx, 11, avx},
    {"fma4", 0x80000001, 0, ecx, 16, avx},
    {"tbm", 0x80000001, 0, ecx, 21},
    {"64bit", 0x80000001, 0, edx, 29},
};

// Return the state that the system saves, or 0 if it does not use XSAVE.
uint64_t kept_state() {
  uint32_t r[4];
  if (!__get_cpuid(1, &r[eax], &r[ebx], &r[ecx], &r[edx]) || !(r[ecx] >> 27 & 1)) return 0;
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Return whether the system lets this process use AMX's tile registers. Without the system's
// permission their first use ends the process. Its threads and children have the permission, too
// (Linux, Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
#ifdef __linux__
  constexpr long request_permission = 0x1023, tile_data = 18; // asm/prctl.h, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return granted;
#else
  return false;
#endif
}

bool has_feature(const Feature& feature, uint64_t state) {
  uint32_t r[4];
  const bool answered =
      __get_cpuid_count(feature.leaf, feature.subleaf, &r[eax], &r[ebx], &r[ecx], &r[edx]);
  if (!answered || !(r[feature.in] >> feature.bit & 1)) return false;
  return (state & feature.state) == feature.state && (feature.state != amx || may_use_tiles());
}

std::set<std::string> detect() {
  std::set<std::string> detected;
  const auto state = kept_state();
  for (const auto& feature : features)
    if (has_feature(feature, state)) detected.emplace(feature.name);
  return detected;
}

} // namespace

const std::set<std::string>& host_features() {
  static const auto detected = detect();
  return detected;
}

// It has the vendor, family, model and features, and the register state that the system saves.
std::string processor_identity() {
  std::ostringstream text;
  text << std::hex << kept_state();
  for (const auto& [leaf, subleaf] : std::initializer_list<std::pair<uint32_t, uint32_t>>{
           {0, 0}, {1, 0}, {7, 0}, {7, 1}, {0x80000001, 0}}) {
    uint32_t r[4]{};
    __get_cpuid_count(leaf, subleaf, &r[eax], &r[ebx], &r[ecx], &r[edx]);
    if (leaf == 1) r[ebx] = 0; // holds the number of the core
    for (const auto word : r)
      text << ' ' << word;
  }
  return text.str();
}

} // namespace torchmdla

#elif !(defined(__aarch64__) && defined(__linux__)) // host_features_aarch64.cpp

const std::set<std::string>& torchmdla::host_features() {
  static const std::set<std::string> none;
  return none;
}

std::string torchmdla::processor_identity() {
  return "";
}

#endif
