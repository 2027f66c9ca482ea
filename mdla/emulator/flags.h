// Flags of a context: names and values of ie_setflag.
#pragma once

#include "compiler.h"

#include <map>
#include <optional>
#include <string>

namespace mdla {

// Value that ie_getinfo returns.
using Info = std::variant<std::string, bool, int32_t, int64_t, float>;

class Flags {
public:
  Flags();

  // Set a flag. Throw Fault for an unknown name or a value that the flag does not allow.
  void set(const std::string& name, const std::string& value);
  // Return the value of a flag, or nullopt for an unknown name.
  std::optional<Info> get(const std::string& name) const;

  bool debug(char letter) const { return text("debug").find(letter) != std::string::npos; }
  bool blocking() const { return number("blockingmode") != 0; }
  bool software() const { return number("runsw") != 0; }
  int64_t first_address() const { return number("addroff"); }
  Board board() const { return read_board(text("board")); }
  // Return the compiler's target. Throw Fault if the flags require more clusters than the board
  // has.
  Target target() const;

  std::string print() const;
  static std::string help();

private:
  const std::string& text(const std::string& name) const { return values_.at(name); }
  int64_t number(const std::string& name) const { return std::stoll(text(name)); }

  std::map<std::string, std::string> values_;
};

} // namespace mdla
