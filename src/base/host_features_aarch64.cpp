// Features of AArch64 processors, which the system reports (Linux, Documentation/arch/arm64/
// elf_hwcaps.rst).
#if defined(__aarch64__) && defined(__linux__)

#include "host_features.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstdint>
#include <sstream>
#include <string_view>

namespace torchmdla {

namespace {

struct Feature {
  std::string_view name;
  unsigned long word; // AT_HWCAP or AT_HWCAP2
  uint64_t bits;
};

constexpr Feature features[] = {
    {"fp-armv8", AT_HWCAP, HWCAP_FP},
    {"neon", AT_HWCAP, HWCAP_ASIMD},
    {"crc", AT_HWCAP, HWCAP_CRC32},
    {"lse", AT_HWCAP, HWCAP_ATOMICS},
    {"fullfp16", AT_HWCAP, HWCAP_FPHP | HWCAP_ASIMDHP},
    {"rdm", AT_HWCAP, HWCAP_ASIMDRDM},
    {"complxnum", AT_HWCAP, HWCAP_FCMA},
    {"rcpc", AT_HWCAP, HWCAP_LRCPC},
    {"dotprod", AT_HWCAP, HWCAP_ASIMDDP},
    {"sve", AT_HWCAP, HWCAP_SVE},
    {"fp16fml", AT_HWCAP, HWCAP_ASIMDFHM},
    {"sve2", AT_HWCAP2, HWCAP2_SVE2},
    {"fptoint", AT_HWCAP2, HWCAP2_FRINT},
    {"i8mm", AT_HWCAP2, HWCAP2_I8MM},
    {"bf16", AT_HWCAP2, HWCAP2_BF16},
};

std::set<std::string> detect() {
  std::set<std::string> detected;
  for (const auto& [name, word, bits] : features)
    if ((getauxval(word) & bits) == bits) detected.emplace(name);
  return detected;
}

} // namespace

const std::set<std::string>& host_features() {
  static const auto detected = detect();
  return detected;
}

// It has the features, and the implementer and part number of a core if the system lets programs
// read them.
std::string processor_identity() {
  uint64_t part = 0;
  if (getauxval(AT_HWCAP) & HWCAP_CPUID) asm("mrs %0, midr_el1" : "=r"(part));
  std::ostringstream text;
  text << std::hex << getauxval(AT_HWCAP) << ' ' << getauxval(AT_HWCAP2) << ' ' << part;
  return text.str();
}

} // namespace torchmdla

#endif
