#include "report.h"

#include <iomanip>
#include <sstream>
#include <type_traits>

namespace mdla {
namespace {

std::string quote(const std::string& text) {
  std::ostringstream out;
  out << '"';
  for (unsigned char letter : text) {
    if (letter == '"' || letter == '\\')
      out << '\\' << letter;
    else if (letter < 32)
      out << "\\u" << std::hex << std::setw(4) << std::setfill('0') << int{letter} << std::dec;
    else
      out << letter;
  }
  out << '"';
  return out.str();
}

// Writer of a record's fields as JSON members.
class JsonFields {
public:
  explicit JsonFields(std::ostream& out) : out_(out) {}

  void operator()(const char* name, const std::string& value) { member(name) << quote(value); }
  void operator()(const char* name, double value) {
    member(name) << std::setprecision(12) << value;
  }
  void operator()(const char* name, int64_t value) { member(name) << value; }
  void operator()(const char* name, const Shape& shape) {
    member(name) << '[';
    for (size_t axis = 0; axis < shape.size(); ++axis)
      out_ << (axis ? "," : "") << shape[axis];
    out_ << ']';
  }

private:
  std::ostream& member(const char* name) {
    out_ << (first_ ? "" : ",") << '"' << name << "\":";
    first_ = false;
    return out_;
  }

  std::ostream& out_;
  bool first_ = true;
};

// Writer of an instruction's fields as "name=value".
class ListingFields {
public:
  explicit ListingFields(std::ostream& out) : out_(out) {}

  template <class T> void operator()(const char* name, const T& value) {
    out_ << ' ' << name << '=';
    print(value);
  }

private:
  template <class T> void print(const T& value) {
    if constexpr (std::is_enum_v<T>)
      out_ << static_cast<int64_t>(value);
    else if constexpr (std::is_arithmetic_v<T>)
      out_ << value;
    else {
      const char* between = "";
      for (const auto& item : value) {
        out_ << between << item;
        between = ",";
      }
    }
  }

  std::ostream& out_;
};

} // namespace

Cost total_cost(const Program& program) {
  Cost total;
  for (const ProgramLayer& layer : program.layers) {
    const Cost& cost = layer.cost;
    for (int64_t Cost::* part : {&Cost::cycles, &Cost::compute_cycles, &Cost::memory_cycles,
                                 &Cost::transfer_cycles, &Cost::macs, &Cost::bytes_loaded,
                                 &Cost::bytes_stored, &Cost::bytes_transferred, &Cost::tiles})
      total.*part = checked_sum(total.*part, cost.*part);
    total.cards = std::max(total.cards, cost.cards);
    total.clusters = std::max(total.clusters, cost.clusters);
  }
  return total;
}

double milliseconds(const Program& program, int64_t cycles) {
  return static_cast<double>(cycles) / (program.clock_mhz * 1e3);
}

double utilisation(const Program& program, const Cost& cost) {
  if (cost.cycles == 0) return 0;
  return static_cast<double>(cost.macs) /
         (static_cast<double>(cost.cycles) * static_cast<double>(program.macs_per_cycle));
}

std::string layers_json(const Program& program) {
  std::ostringstream out;
  out << '[';
  const char* between = "";
  for (ProgramLayer layer : program.layers) {
    out << between << '{';
    between = ",";
    JsonFields fields(out);
    fields("name", layer.name), fields("type", layer.type), fields("output", layer.output.name);
    fields("shape", layer.output.shape), fields("address", layer.output.address);
    fields("element_bytes", element_bytes(program.precision)),
        fields("fraction", layer.output.fraction);
    layer.cost.fields(fields);
    fields("utilisation", utilisation(program, layer.cost));
    fields("milliseconds", milliseconds(program, layer.cost.cycles));
    out << '}';
  }
  out << ']';
  return out.str();
}

std::string listing(const Program& program) {
  std::ostringstream out;
  for (const ProgramLayer& layer : program.layers) {
    out << "layer " << layer.name << " (" << layer.type << ")\n";
    for (size_t cluster = 0; cluster < layer.code.size(); ++cluster) {
      out << " cluster " << cluster << "\n";
      for (Instruction instruction : layer.code[cluster]) {
        out << "  " << kOpcodes[instruction.index()];
        std::visit([&](auto& code) { code.fields(ListingFields(out)); }, instruction);
        out << "\n";
      }
    }
  }
  return out.str();
}

} // namespace mdla
