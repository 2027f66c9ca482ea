// Statistics and groups as JSON, for programs without Python.

#include "group/group_report.h"
#include "group/memory_limit.h"
#include "group/statistics.h"
#include "runtime/memory.h"
#include "torchmdla/torchmdla.h"

#include <iomanip>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torchmdla {

namespace {

using Field = std::pair<std::string_view, std::string>; // a key, and its value as JSON

std::string text(std::string_view value) {
  std::ostringstream out;
  out << '"';
  for (const char c : value) {
    if (c == '"' || c == '\\')
      out << '\\' << c;
    else if (static_cast<unsigned char>(c) < ' ')
      out << "\\u" << std::hex << std::setw(4) << std::setfill('0') << int{c};
    else
      out << c;
  }
  out << '"';
  return out.str();
}

std::string number(int64_t value) {
  return std::to_string(value);
}

// Return the elements of `list` that `write` converts, in brackets.
template <class List, class Write>
std::string bracketed(char left, const List& list, char right, Write write) {
  std::string result(1, left);
  for (const auto& element : list)
    result += (result.size() > 1 ? ", " : "") + write(element);
  return result + right;
}

template <class List, class Write> std::string array(const List& list, Write write) {
  return bracketed('[', list, ']', write);
}

std::string object(const std::vector<Field>& fields) {
  return bracketed('{', fields, '}',
                   [](const Field& field) { return text(field.first) + ": " + field.second; });
}

std::string counts(const std::map<std::string, int64_t>& counts) {
  return bracketed('{', counts, '}', [](const auto& entry) {
    return text(entry.first) + ": " + number(entry.second);
  });
}

std::string to_json(const SpecialisationReport& report) {
  const char* state = report.executable ? "compiled" : report.excluded_nodes ? "divided" : "failed";
  return object({{"state", text(state)},
                 {"is_dynamic", number(report.pattern ? 1 : 0)},
                 {"failure", text(report.failure)}});
}

std::string to_json(const GroupReport& report) {
  return object({{"number", number(report.number)},
                 {"name", text(report.name)},
                 {"device", text(report.device)},
                 {"compiled_calls", number(report.compiled_calls)},
                 {"training_calls", number(report.training_calls)},
                 {"fallbacks", counts(report.fallbacks)},
                 {"specialisations", array(report.specialisations, [](const auto& specialisation) {
                    return to_json(specialisation);
                  })}});
}

} // namespace

std::string statistics_as_json() {
  const auto& counters = statistics();
  return object({{"groups", number(counters.groups)},
                 {"specialisations", number(counters.specialisations)},
                 {"packages", counts(counters.packages.loaded.counts())},
                 {"packaged_specialisations", number(counters.packages.specialisations)},
                 {"refused", counts(counters.packages.refused.counts())},
                 {"fallbacks", counts(counters.fallbacks.counts())},
                 {"training_calls", number(counters.training_calls)},
                 {"packed_bytes", number(memory_use().packed)},
                 {"workspace_bytes", number(memory_use().workspace)},
                 {"code_bytes", number(memory_use().code)},
                 {"memory_limit", number(memory_limit())},
                 {"unpacked", number(counters.memory.unpacked)},
                 {"evicted", number(counters.memory.evicted)},
                 {"over_limit", number(counters.memory.over_limit)},
                 {"speed_checks", number(counters.speed.checks)},
                 {"replaced", number(counters.speed.replaced)}});
}

std::string explain_as_json() {
  return array(group_reports(), [](const auto& group) { return to_json(group); });
}

} // namespace torchmdla
