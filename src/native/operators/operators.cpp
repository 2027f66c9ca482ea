#include "operators.h"

#include <unordered_map>

namespace torchmdla::native {

void fail(const std::string& text) {
  throw Error(TMDLA_FAILED, text);
}

const Operator* find_operator(std::string_view name) {
  static const auto operators = [] {
    std::unordered_map<std::string_view, const Operator*> known;
    for (const auto& table : {number_operators(), text_operators(), container_operators(),
                              view_operators(), tensor_operators()})
      for (const auto& entry : table)
        known.emplace(entry.name, &entry);
    return known;
  }();
  const auto entry = operators.find(name);
  return entry == operators.end() ? nullptr : entry->second;
}

} // namespace torchmdla::native
