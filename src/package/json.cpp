// Statistics and groups as JSON, for programs without Python.

#include "group/group_report.h"
#include "group/memory_limit.h"
#include "group/statistics.h"
#include "runtime/memory.h"
#include "torchmdla/torchmdla.h"

#include <iomanip>
#include <sstream>
#include <string_view>

namespace torchmdla {

namespace {

// Writer of JSON values. The caller is responsible for writing them in a valid order.
class JsonWriter {
public:
  void number(int64_t value) { out_ << value; }

  void text(std::string_view value) {
    out_ << '"';
    for (const char c : value) {
      if (c == '"' || c == '\\')
        out_ << '\\' << c;
      else if (static_cast<unsigned char>(c) < ' ')
        out_ << "\\u" << std::hex << std::setw(4) << std::setfill('0') << int{c} << std::dec;
      else
        out_ << c;
    }
    out_ << '"';
  }

  // Write an object. `fields` are pairs of a key and a function that writes its value.
  template <class Fields> void object(const Fields& fields) {
    const char* separator = "{";
    for (const auto& [key, write] : fields) {
      out_ << separator;
      text(key);
      out_ << ": ";
      write();
      separator = ", ";
    }
    out_ << (*separator == '{' ? "{}" : "}");
  }

  template <class List, class Write> void array(const List& list, Write write) {
    const char* separator = "[";
    for (const auto& element : list) {
      out_ << separator;
      write(element);
      separator = ", ";
    }
    out_ << (*separator == '[' ? "[]" : "]");
  }

  void counts(const std::map<std::string, int64_t>& counts) {
    std::vector<Field> fields;
    for (const auto& [key, count] : counts)
      fields.emplace_back(key, [this, count = count] { number(count); });
    object(fields);
  }

  using Field = std::pair<std::string, std::function<void()>>;

  Field field(const char* key, int64_t value) {
    return {key, [this, value] { number(value); }};
  }
  Field field(const char* key, const std::map<std::string, int64_t>& value) {
    return {key, [this, value] { counts(value); }};
  }
  Field field(const char* key, const std::string& value) {
    return {key, [this, value] { text(value); }};
  }

  std::string str() const { return out_.str(); }

private:
  std::ostringstream out_;
};

void write(JsonWriter& json, const SpecialisationReport& report) {
  const char* state = report.executable ? "compiled" : report.excluded_nodes ? "divided" : "failed";
  json.object(std::vector{json.field("state", std::string(state)),
                          json.field("is_dynamic", report.pattern ? 1 : 0),
                          json.field("failure", report.failure)});
}

void write(JsonWriter& json, const GroupReport& report) {
  std::vector fields{json.field("number", report.number),
                     json.field("name", report.name),
                     json.field("device", report.device),
                     json.field("compiled_calls", report.compiled_calls),
                     json.field("training_calls", report.training_calls),
                     json.field("fallbacks", report.fallbacks)};
  fields.emplace_back("specialisations", [&] {
    json.array(report.specialisations, [&](const auto& entry) { write(json, entry); });
  });
  json.object(fields);
}

} // namespace

std::string statistics_as_json() {
  JsonWriter json;
  const auto& counters = statistics();
  json.object(std::vector{json.field("groups", counters.groups),
                          json.field("specialisations", counters.specialisations),
                          json.field("packages", counters.packages.loaded.counts()),
                          json.field("packaged_specialisations", counters.packages.specialisations),
                          json.field("refused", counters.packages.refused.counts()),
                          json.field("fallbacks", counters.fallbacks.counts()),
                          json.field("training_calls", counters.training_calls),
                          json.field("packed_bytes", memory_use().packed),
                          json.field("workspace_bytes", memory_use().workspace),
                          json.field("code_bytes", memory_use().code),
                          json.field("memory_limit", memory_limit()),
                          json.field("unpacked", counters.memory.unpacked),
                          json.field("evicted", counters.memory.evicted),
                          json.field("over_limit", counters.memory.over_limit)});
  return json.str();
}

std::string explain_as_json() {
  JsonWriter json;
  json.array(group_reports(), [&](const auto& entry) { write(json, entry); });
  return json.str();
}

} // namespace torchmdla
