// Values as text.
#pragma once

#include "native/value.h"

#include <string_view>

namespace torchmdla::native {

// Text that grows in memory of an arena.
class Text {
public:
  explicit Text(Arena& arena) : arena_(arena) {}
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() {
    if (data_) arena_.release(data_, capacity_);
  }

  Text& operator+=(std::string_view more);
  Text& operator+=(char letter) { return *this += std::string_view(&letter, 1); }
  std::string_view view() const { return {data_, size_}; }

private:
  Arena& arena_;
  char* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

// Append a value as TorchScript prints it.
void append_text(Text& text, const Value& value);

} // namespace torchmdla::native
