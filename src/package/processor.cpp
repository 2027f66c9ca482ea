#include "processor.h"

#include "cpu_tables.h"
#include "support/host_features.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <sstream>

namespace torchmdla {

namespace {

std::set<std::string> words(const char* text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

} // namespace

std::set<std::string> features_of(const std::string& processor) {
  if (processor == "native") return host_features();
  std::string names = "native";
  for (const auto& [level, listed] : cpu_levels) {
    names += std::string(", ") + level;
    if (processor != level) continue;
    auto wanted = words(listed);
    const auto& host = host_features();
    TORCH_CHECK_VALUE(std::ranges::includes(host, wanted), "torchmdla: this processor is no ",
                      processor);
    // Of vectors the level's alone; what has no part in these is as it is.
    return wanted;
  }
  TORCH_CHECK_VALUE(false, "torchmdla: no processor \"", processor, "\"; there are ", names);
}

} // namespace torchmdla
