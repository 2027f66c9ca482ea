// Reader of protobuf's wire format: fields of one message, in order.
// Source of the format: protobuf.dev/programming-guides/encoding.
#pragma once

#include "fault.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace mdla {

class Message {
public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  // Advance to the next field. Return false at the end. A field that is not read is skipped.
  bool next() {
    if (rest_.empty()) return false;
    uint64_t key = take_varint(rest_);
    field_ = static_cast<uint32_t>(key >> 3);
    wire_ = static_cast<uint32_t>(key & 7);
    switch (wire_) {
    case 0:
      number_ = take_varint(rest_);
      break;
    case 1:
      payload_ = take(rest_, 8);
      break;
    case 2:
      payload_ = take(rest_, take_varint(rest_));
      break;
    case 5:
      payload_ = take(rest_, 4);
      break;
    default:
      refuse("the ONNX file is damaged: wire type ", wire_);
    }
    return true;
  }

  uint32_t field() const { return field_; }

  int64_t integer() const {
    require(wire_ == 0, "the ONNX file is damaged: field ", field_, " is not an integer");
    return static_cast<int64_t>(number_);
  }

  std::string_view bytes() const {
    require(wire_ == 2, "the ONNX file is damaged: field ", field_, " has no bytes");
    return payload_;
  }

  std::string string() const { return std::string(bytes()); }
  Message message() const { return Message(bytes()); }

  float real() const {
    require(wire_ == 5, "the ONNX file is damaged: field ", field_, " is not a float");
    return copy<float>(payload_.data());
  }

  // Append the values of a repeated scalar, which is packed in one field or has one field for each
  // value.
  void append(std::vector<int64_t>& values) const {
    if (wire_ == 0) return values.push_back(integer());
    for (std::string_view packed = bytes(); !packed.empty();)
      values.push_back(static_cast<int64_t>(take_varint(packed)));
  }

  template <class Real> void append_fixed(std::vector<Real>& values) const {
    require(wire_ != 0 && payload_.size() % sizeof(Real) == 0, "the ONNX file is damaged: field ",
            field_, " is cut");
    for (size_t at = 0; at < payload_.size(); at += sizeof(Real))
      values.push_back(copy<Real>(payload_.data() + at));
  }

private:
  template <class T> static T copy(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  static std::string_view take(std::string_view& from, uint64_t count) {
    require(count <= from.size(), "the ONNX file is damaged: it ends in the middle of a field");
    std::string_view taken = from.substr(0, count);
    from.remove_prefix(count);
    return taken;
  }

  static uint64_t take_varint(std::string_view& from) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint64_t byte = static_cast<unsigned char>(take(from, 1)[0]);
      value |= (byte & 127) << shift;
      if (byte < 128) return value;
    }
    refuse("the ONNX file is damaged: an integer of more than 64 bits");
  }

  std::string_view rest_, payload_;
  uint64_t number_ = 0;
  uint32_t field_ = 0, wire_ = 0;
};

} // namespace mdla
