#include "processor.h"

#include "base/host_features.h"
#include "cpu_tables.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <vector>

namespace torchmdla {

namespace {

std::set<std::string> words(const char* text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

} // namespace

bool converts_f16(const std::string& processor) {
#ifdef __x86_64__
  return features_of(processor).contains("f16c");
#else
  return true;
#endif
}

std::set<std::string> features_of(const std::string& processor) {
  if (processor == "native") return host_features();
  std::string names = "native";
  for (const auto& [level, listed] : cpu_levels) {
    names += std::string(", ") + level;
    if (processor != level) continue;
    const auto required = words(listed);
    const auto& host = host_features();
    std::vector<std::string> missing;
    std::ranges::set_difference(required, host, std::back_inserter(missing));
    TORCH_CHECK_VALUE(missing.empty(), "this processor does not support ", processor,
                      " (missing: ", c10::Join(", ", missing), ")");
    return required;
  }
  TORCH_CHECK_VALUE(false, "unknown processor '", processor, "' (choose from ", names, ")");
}

} // namespace torchmdla
