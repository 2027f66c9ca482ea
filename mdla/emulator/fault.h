// The only exception of the emulator. Its text gives the reason.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace mdla {

class Fault : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

template <class... Parts> [[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Fault(text.str());
}

template <class... Parts> void require(bool holds, const Parts&... parts) {
  if (!holds) refuse(parts...);
}

} // namespace mdla
