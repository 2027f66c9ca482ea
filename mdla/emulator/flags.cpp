#include "flags.h"

#include <algorithm>
#include <variant>

namespace mdla {
namespace {

enum class Kind { kText, kLetters, kNumber, kBool, kChoice };

struct Rule {
  Kind kind;
  std::string otherwise; // default value
  std::string allowed;   // letters, or choices with spaces around them
  int64_t most = 0;      // largest value of a number
  const char* help = "";
};

const char* const kPrecisions = " float32 fixed16 fixed8 variable ";

const std::map<std::string, Rule>& rules() {
  static const std::map<std::string, Rule> table{
      {"debug",
       {Kind::kLetters, "", "bwcCnsSpdarRiItToQJ", 0,
        "b: messages, n: layers and their costs, I: instructions"}},
      {"options",
       {Kind::kLetters, "", "vVMCBkrKfdPwsSQiLztmaxnl", 0, "V: precision variable, S: runsw 1"}},
      {"nclusters", {Kind::kNumber, "1", "", 1024, "clusters of each FPGA"}},
      {"nfpgas", {Kind::kNumber, "1", "", 1024, "FPGAs"}},
      {"precision",
       {Kind::kChoice, "fixed16", kPrecisions, 0, "float32, fixed16, fixed8 or variable"}},
      {"blockingmode", {Kind::kBool, "1", "", 0, "ie_putinput and ie_getresult wait"}},
      {"clustersbatchmode", {Kind::kBool, "1", "", 0, "no effect: clusters always share an input"}},
      {"runsw", {Kind::kBool, "0", "", 0, "ie_run runs the reference software"}},
      {"headroom",
       {Kind::kChoice, "auto", " auto 0 1 2 3 4 5 6 7 8 ", 0,
        "bits above the largest value of calibration; auto: 1 of 16, 0 of 8"}},
      {"board", {Kind::kText, "", "", 0, "file of the board; \"\" for the shipped one"}},
      {"addroff",
       {Kind::kNumber, "0", "", int64_t{1} << 50, "lowest address of the network on the card"}},
      {"fpgaid", {Kind::kChoice, "sim", " sim -1 510 511 852 ", 0, "no effect"}},
      {"bitfile", {Kind::kText, "", "", 0, "no effect"}},
      {"firstcluster", {Kind::kNumber, "0", "", 1024, "no effect"}},
      {"hwlinear", {Kind::kBool, "1", "", 0, "no effect: linear layers are the device's"}},
      {"no_rearrange", {Kind::kBool, "0", "", 0, "no effect: outputs have the model's layout"}},
  };
  return table;
}

// Return the synonyms of flags' names.
const std::map<std::string, std::string>& synonyms() {
  static const std::map<std::string, std::string> table{{"clusters", "nclusters"},
                                                        {"fpgas", "nfpgas"}};
  return table;
}

const std::string& canonical(const std::string& name) {
  auto entry = synonyms().find(name);
  return entry == synonyms().end() ? name : entry->second;
}

// Return the names of all flags, separated by commas.
std::string flag_names() {
  std::string names;
  for (const auto& [name, rule] : rules())
    names += (names.empty() ? "" : ", ") + name;
  return names;
}

bool is_number(const std::string& value, int64_t most) {
  bool digits = !value.empty() && value.size() < 17 &&
                value.find_first_not_of("0123456789") == std::string::npos;
  return digits && std::stoll(value) <= most;
}

bool allows(const Rule& rule, const std::string& value) {
  switch (rule.kind) {
  case Kind::kText:
    return true;
  case Kind::kLetters:
    return value.find_first_not_of(rule.allowed) == std::string::npos;
  case Kind::kNumber:
    return is_number(value, rule.most);
  case Kind::kBool:
    return value == "0" || value == "1";
  case Kind::kChoice:
    return value.find(' ') == std::string::npos &&
           rule.allowed.find(" " + value + " ") != std::string::npos;
  }
  return false;
}

Precision parse_precision(const std::string& name) {
  static const std::map<std::string, Precision> table{{"float32", Precision::kFloat32},
                                                      {"fixed16", Precision::kFixed16},
                                                      {"fixed8", Precision::kFixed8},
                                                      {"variable", Precision::kVariable}};
  return table.at(name);
}

} // namespace

Flags::Flags() {
  for (const auto& [name, rule] : rules())
    values_[name] = rule.otherwise;
}

void Flags::set(const std::string& flag_name, const std::string& value) {
  if (flag_name == "reset") {
    *this = Flags();
    return;
  }
  const std::string& name = canonical(flag_name);
  auto rule = rules().find(name);
  require(rule != rules().end(), "unknown flag '", flag_name, "' (choose from ", flag_names(), ")");
  require(allows(rule->second, value), "the flag ", flag_name, " does not take \"", value, "\" (",
          rule->second.help, ")");
  values_[name] = value;
  if (name == "options" && value.find('V') != std::string::npos) values_["precision"] = "variable";
  if (name == "options" && value.find('S') != std::string::npos) values_["runsw"] = "1";
}

std::optional<Info> Flags::get(const std::string& flag_name) const {
  const std::string& name = canonical(flag_name);
  auto rule = rules().find(name);
  if (rule == rules().end()) return std::nullopt;
  switch (rule->second.kind) {
  case Kind::kNumber:
    if (rule->second.most > std::numeric_limits<int32_t>::max()) return number(name);
    return static_cast<int32_t>(number(name));
  case Kind::kBool:
    return number(name) != 0;
  default:
    return text(name);
  }
}

Target Flags::target() const {
  Target target;
  target.precision = parse_precision(text("precision"));
  target.board = board();
  target.clusters = number("nclusters"), target.fpgas = number("nfpgas");
  bool wide = target.precision != Precision::kFixed8;
  target.headroom = text("headroom") == "auto" ? wide : number("headroom");
  require(target.clusters >= 1 && target.clusters <= target.board.clusters, "nclusters is ",
          target.clusters, "; the board has 1 to ", target.board.clusters);
  require(target.fpgas >= 1 && target.fpgas <= target.board.fpgas, "nfpgas is ", target.fpgas,
          "; there are 1 to ", target.board.fpgas);
  return target;
}

std::string Flags::print() const {
  std::string out;
  for (const auto& [name, value] : values_)
    out += name + "=" + value + "\n";
  return out;
}

std::string Flags::help() {
  std::string out;
  for (const auto& [name, rule] : rules())
    out += name + ": " + rule.help + "\n";
  return out;
}

} // namespace mdla
