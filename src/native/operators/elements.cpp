#include "elements.h"

#include "native/error.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace torchmdla::native {

namespace {

template <class Number> Number read(const std::byte* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

template <class Number> void write(std::byte* to, Number number) {
  std::memcpy(to, &number, sizeof number);
}

constexpr int half_mantissa = 10, float_mantissa = 23;
constexpr uint32_t half_infinity = 0x7c00;

float from_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> half_mantissa & 0x1f,
                 mantissa = half & 0x3ff;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -value : value;
  }
  const uint32_t wide = exponent == 0x1f ? 0xff : exponent + 112;
  return std::bit_cast<float>(sign | wide << float_mantissa |
                              mantissa << (float_mantissa - half_mantissa));
}

// Round to the nearest half, and to an even one between two.
uint16_t to_half(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  constexpr uint32_t least_normal = 113 << float_mantissa, beyond = 143u << float_mantissa;
  if (magnitude >= beyond) return static_cast<uint16_t>(sign | half_infinity);
  if (magnitude < least_normal) {
    const auto scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
  }
  const uint32_t rebased = magnitude - (112u << float_mantissa);
  const uint32_t odd = rebased >> (float_mantissa - half_mantissa) & 1;
  return static_cast<uint16_t>(sign | (rebased + 0xfff + odd) >> (float_mantissa - half_mantissa));
}

uint16_t to_bfloat16(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  if (std::isnan(number)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

int64_t to_int(double number) {
  constexpr double beyond = 0x1p63;
  return number >= -beyond && number < beyond ? static_cast<int64_t>(number)
                                              : std::numeric_limits<int64_t>::min();
}

int64_t as_integer(const Value& number) {
  if (number.kind() == Kind::boolean) return number.boolean();
  return number.kind() == Kind::integer ? number.integer() : to_int(number.real());
}

template <class Real> Real as_real(const Value& number) {
  if (number.kind() == Kind::real) return static_cast<Real>(number.real());
  return static_cast<Real>(as_integer(number));
}

[[noreturn]] void refuse(int64_t dtype) {
  throw Error(TMDLA_FAILED, "numbers of dtype " + dtype_name(dtype) + " are in groups only");
}

// Visit the addresses of all elements of two tensors of these sizes.
template <class Visit>
void visit_elements(std::span<const int64_t> sizes, std::span<const int64_t> to,
                    std::span<const int64_t> from, Visit visit) {
  Dimensions place;
  place.resize(sizes.size());
  int64_t to_offset = 0, from_offset = 0;
  for (auto left = element_count(sizes); left > 0; --left) {
    visit(to_offset, from_offset);
    for (size_t i = sizes.size(); i-- > 0;) {
      to_offset += to[i];
      from_offset += from[i];
      if (++place[i] < sizes[i]) break;
      to_offset -= to[i] * sizes[i];
      from_offset -= from[i] * sizes[i];
      place[i] = 0;
    }
  }
}

} // namespace

Value load_element(int64_t dtype, const std::byte* from) {
  switch (dtype) {
  case TMDLA_UINT8:
    return int64_t{read<uint8_t>(from)};
  case TMDLA_INT8:
    return int64_t{read<int8_t>(from)};
  case TMDLA_INT16:
    return int64_t{read<int16_t>(from)};
  case TMDLA_INT32:
    return int64_t{read<int32_t>(from)};
  case TMDLA_INT64:
    return read<int64_t>(from);
  case TMDLA_FLOAT16:
    return double{from_half(read<uint16_t>(from))};
  case TMDLA_BFLOAT16:
    return double{std::bit_cast<float>(uint32_t{read<uint16_t>(from)} << 16)};
  case TMDLA_FLOAT32:
    return double{read<float>(from)};
  case TMDLA_FLOAT64:
    return read<double>(from);
  case TMDLA_BOOL:
    return read<uint8_t>(from) != 0;
  default:
    refuse(dtype);
  }
}

void store_element(int64_t dtype, std::byte* to, const Value& number) {
  switch (dtype) {
  case TMDLA_UINT8:
  case TMDLA_INT8:
    return write(to, static_cast<int8_t>(as_integer(number)));
  case TMDLA_INT16:
    return write(to, static_cast<int16_t>(as_integer(number)));
  case TMDLA_INT32:
    return write(to, static_cast<int32_t>(as_integer(number)));
  case TMDLA_INT64:
    return write(to, as_integer(number));
  case TMDLA_FLOAT16:
    return write(to, to_half(as_real<float>(number)));
  case TMDLA_BFLOAT16:
    return write(to, to_bfloat16(as_real<float>(number)));
  case TMDLA_FLOAT32:
    return write(to, as_real<float>(number));
  case TMDLA_FLOAT64:
    return write(to, as_real<double>(number));
  case TMDLA_BOOL:
    return write(to, static_cast<uint8_t>(as_real<double>(number) != 0));
  default:
    refuse(dtype);
  }
}

void convert_elements(const Tensor& to, const Tensor& from) {
  if (to.dtype == from.dtype) {
    copy_tensor(to, from);
    return;
  }
  const auto to_width = static_cast<int64_t>(to.width()),
             from_width = static_cast<int64_t>(from.width());
  visit_elements(to.sizes(), to.strides(), from.strides(), [&](int64_t target, int64_t source) {
    store_element(to.dtype, to.data() + target * to_width,
                  load_element(from.dtype, from.data() + source * from_width));
  });
}

void fill_elements(const Tensor& tensor, const Value& number) {
  std::byte element[16];
  store_element(tensor.dtype, element, number);
  const Dimensions repeated = [&] {
    Dimensions strides;
    strides.resize(tensor.rank);
    return strides;
  }();
  copy_elements(tensor.data(), tensor.strides(), element, repeated, tensor.sizes(), tensor.width());
}

void check_writable(const Tensor& tensor) {
  if (tensor.storage->owner == Storage::Owner::file)
    throw Error(TMDLA_FAILED, "the program writes to a constant");
}

} // namespace torchmdla::native
