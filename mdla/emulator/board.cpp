#include "board.h"

#include "files.h"

#include <functional>
#include <map>
#include <set>

namespace mdla {

// Text of torchmdla/devices/mdla/boards/ac511.board. The build generates the definition
// (shipped_board.cpp.in).
extern const char* const kShippedBoard;

namespace {

std::string trim(const std::string& text) {
  size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

double positive(const std::string& key, const std::string& value) {
  size_t read = 0;
  double number = 0;
  try {
    number = std::stod(value, &read);
  } catch (const std::exception&) {
    read = 0;
  }
  require(read == value.size() && number >= kLeastFigure && number <= kMostFigure, "board: ", key,
          " must be a positive number, not \"", value, "\"");
  return number;
}

using Setter = std::function<void(Board&, const std::string& key, const std::string& value)>;

Setter number(int64_t Board::* field) {
  return [field](Board& board, const std::string& key, const std::string& value) {
    board.*field = static_cast<int64_t>(positive(key, value));
    require(board.*field > 0, "board: ", key, " must be at least 1");
  };
}

Setter number(double Board::* field) {
  return [field](Board& board, const std::string& key, const std::string& value) {
    board.*field = positive(key, value);
  };
}

const std::map<std::string, Setter>& keys() {
  static const std::map<std::string, Setter> table{
      {"name",
       [](Board& board, const std::string&, const std::string& value) { board.name = value; }},
      {"clock_mhz", number(&Board::clock_mhz)},
      {"clusters", number(&Board::clusters)},
      {"fpgas", number(&Board::fpgas)},
      {"macs_per_cluster", number(&Board::macs_per_cluster)},
      {"mac_vector", number(&Board::mac_vector)},
      {"vector_lanes", number(&Board::vector_lanes)},
      {"maps_bytes", number(&Board::maps_bytes)},
      {"weights_bytes", number(&Board::weights_bytes)},
      {"accumulators", number(&Board::accumulators)},
      {"memory_bytes", number(&Board::memory_bytes)},
      {"bandwidth_gb_s", number(&Board::bandwidth_gb_s)},
      {"host_gb_s", number(&Board::host_gb_s)},
      {"instruction_cycles", number(&Board::instruction_cycles)},
      {"latency_cycles", number(&Board::latency_cycles)},
      {"buffers", number(&Board::buffers)},
  };
  return table;
}

} // namespace

Board parse_board(const std::string& text) {
  std::istringstream lines(text);
  Board board;
  std::set<std::string> seen_keys;
  for (std::string line; std::getline(lines, line);) {
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    size_t equals = line.find('=');
    require(equals != std::string::npos, "board: \"", line, "\" is not \"key = value\"");
    std::string key = trim(line.substr(0, equals));
    auto entry = keys().find(key);
    require(entry != keys().end(), "board: unknown key \"", key, "\"");
    entry->second(board, key, trim(line.substr(equals + 1)));
    seen_keys.insert(key);
  }
  for (const auto& [key, setter] : keys())
    require(seen_keys.count(key), "board: ", key, " is missing");
  require(board.macs_per_cluster % board.mac_vector == 0,
          "board: macs_per_cluster must be a multiple of mac_vector");
  return board;
}

Board read_board(const std::string& path) {
  return parse_board(path.empty() ? kShippedBoard : read_file(path));
}

} // namespace mdla
