// Keys made of bytes.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace torchmdla {

// Builder of keys. Every entry begins with its length or has a fixed length, so that different
// sequences of entries of the same types have different bytes.
class ByteKey {
public:
  template <class Plain>
    requires std::is_trivially_copyable_v<Plain> && (!std::convertible_to<Plain, std::string_view>)
  void add(const Plain& plain) {
    bytes_.append(reinterpret_cast<const char*>(&plain), sizeof plain);
  }

  void add(std::string_view text) {
    add(text.size());
    bytes_ += text;
  }

  template <class List> void add_list(const List& list) {
    add(list.size());
    for (const auto& element : list)
      add(element);
  }

  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

private:
  std::string bytes_;
};

} // namespace torchmdla
