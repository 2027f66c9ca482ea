// Layout of DLPack tensors, according to its specification ("C API", version 1;
// https://dmlc.github.io/dlpack/latest/c_api.html). Callers use their own definition of it.
#pragma once

#include "tensor.h"
#include "torchmdla/runtime.h"

#include <cstdint>

namespace torchmdla::native::dlpack {

constexpr int32_t on_cpu = 1; // kDLCPU

struct Device {
  int32_t kind, number;
};

struct Type {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  Type type;
  int64_t* sizes;
  int64_t* strides; // null: contiguous
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*release)(ManagedTensor*);
};

static_assert(sizeof(void*) == 8 && sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 64);

// Return a view of `tensor`. Throw Error if it is not on the CPU or models do not support its
// dtype.
TensorView view_of(const ManagedTensor& tensor);

} // namespace torchmdla::native::dlpack
