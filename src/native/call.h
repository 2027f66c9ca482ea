// One call of a model's code: its buffers, and the copies before and after it.
#pragma once

#include "content.h"
#include "tensor.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace torchmdla::native {

// Call of a specialisation. Tensors whose strides or alignment the code does not support are copied
// to and from the memory of the thread, which also contains the workspace.
class Call {
public:
  using AddressOfWeight = std::function<const void*(size_t number)>;

  Call(const Specialisation& specialisation, std::span<const int64_t> symbols,
       std::span<const TensorView> inputs, std::span<const TensorView> outputs);

  // Run the code and return its status.
  int32_t run(int32_t (*entry)(void* const* buffers), int64_t workspace_bytes,
              std::span<const void* const> packed, const AddressOfWeight& weight);

private:
  // Copy between a tensor and the thread's memory.
  struct Copy {
    const TensorView* tensor;
    Numbers strides; // in the thread's memory
    size_t offset;
  };

  size_t reserve(size_t bytes);
  void plan_inputs();
  void plan_outputs();
  std::vector<void*> buffers(std::byte* memory, std::span<const void* const> packed,
                             const AddressOfWeight& weight);
  void copy_in(std::byte* memory) const;
  void copy_out(std::byte* memory) const;

  const Specialisation& specialisation_;
  std::span<const int64_t> symbols_;
  std::span<const TensorView> inputs_, outputs_;
  std::vector<Copy> before_, after_;
  std::vector<std::ptrdiff_t> copied_inputs_, copied_results_; // offset of each, or `in_place`
  size_t reserved_ = 0;
};

} // namespace torchmdla::native
