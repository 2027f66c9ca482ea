#include "dlpack.h"

#include "error.h"

namespace torchmdla::native::dlpack {

namespace {

// DLDataTypeCode of DLPack.
enum Code : uint8_t { integer = 0, natural = 1, real = 2, bfloat = 4, complex = 5, boolean = 6 };

struct Row {
  uint8_t code, bits;
  tmdla_dtype dtype;
};

constexpr Row rows[] = {
    {natural, 8, TMDLA_UINT8},        {integer, 8, TMDLA_INT8},   {integer, 16, TMDLA_INT16},
    {integer, 32, TMDLA_INT32},       {integer, 64, TMDLA_INT64}, {real, 16, TMDLA_FLOAT16},
    {real, 32, TMDLA_FLOAT32},        {real, 64, TMDLA_FLOAT64},  {complex, 64, TMDLA_COMPLEX64},
    {complex, 128, TMDLA_COMPLEX128}, {boolean, 8, TMDLA_BOOL},   {bfloat, 16, TMDLA_BFLOAT16},
};

int64_t dtype_of(const Type& type) {
  for (const auto& [code, bits, dtype] : rows)
    if (code == type.code && bits == type.bits && type.lanes == 1) return dtype;
  throw Error(TMDLA_WRONG_TENSOR, "no model takes DLPack's dtype of code " +
                                      std::to_string(type.code) + " with " +
                                      std::to_string(type.bits) + " bits");
}

} // namespace

TensorView view_of(const ManagedTensor& managed) {
  const auto& tensor = managed.tensor;
  if (tensor.device.kind != on_cpu)
    throw Error(TMDLA_WRONG_TENSOR, "a tensor of DLPack is not on the CPU");
  if (tensor.rank < 0 || (tensor.rank > 0 && !tensor.sizes))
    throw Error(TMDLA_INVALID_ARGUMENT, "a tensor of DLPack has no sizes");
  const auto rank = static_cast<size_t>(tensor.rank);
  return {static_cast<std::byte*>(tensor.data) + tensor.byte_offset,
          dtype_of(tensor.type),
          {tensor.sizes, rank},
          {tensor.strides, tensor.strides ? rank : 0}};
}

} // namespace torchmdla::native::dlpack
