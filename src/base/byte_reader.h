// Reader of numbers, texts and lists from untrusted bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torchmdla {

// Error in malformed bytes, with the reason.
struct BadBytes : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reader of the format that torchmdla/packages/fields.py writes: integers and floats of 64 bits in
// little-endian order, one byte for a boolean or a kind, and the number of elements before every
// list and text. For any bytes it throws BadBytes or returns their content.
class ByteReader {
public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool at_end() const { return bytes_.empty(); }

  std::span<const std::byte> bytes(size_t count) {
    if (count > bytes_.size()) throw BadBytes("it is cut short");
    const auto read = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return read;
  }

  uint8_t byte() { return static_cast<uint8_t>(bytes(1)[0]); }
  bool truth() { return byte() != 0; }
  int64_t integer() { return plain<int64_t>(); }
  double real() { return plain<double>(); }

  // Read an index or a number of bytes.
  size_t count() {
    const auto number = integer();
    if (number < 0) throw BadBytes("a number is negative that must not be");
    return static_cast<size_t>(number);
  }

  std::string text() {
    const auto characters = bytes(count());
    return {reinterpret_cast<const char*>(characters.data()), characters.size()};
  }

  // Read a list, each element by a call of `read`.
  template <class Read> auto list(Read read) {
    using Element = std::invoke_result_t<Read>;
    std::vector<Element> elements;
    auto left = count();
    // Every element has at least one byte.
    if (left > bytes_.size()) throw BadBytes("a list is longer than what holds it");
    // The reservation is limited by the bytes left, because elements may be larger than their
    // bytes.
    elements.reserve(std::min(left, bytes_.size() / sizeof(Element)));
    for (; left != 0; --left)
      elements.push_back(read());
    return elements;
  }

  std::vector<int64_t> integers() {
    return list([this] { return integer(); });
  }
  std::vector<size_t> counts() {
    return list([this] { return count(); });
  }

private:
  template <class Number> Number plain() {
    static_assert(std::endian::native == std::endian::little);
    Number number;
    std::memcpy(&number, bytes(sizeof number).data(), sizeof number);
    return number;
  }

  std::span<const std::byte> bytes_;
};

} // namespace torchmdla
