// Elements of tensors as numbers.
#pragma once

#include "native/value.h"

namespace torchmdla::native {

// Return an element as a bool, int or float. Throw Error for complex numbers.
Value load_element(int64_t dtype, const std::byte* from);

// Write a number as an element, converted as PyTorch converts it.
void store_element(int64_t dtype, std::byte* to, const Value& number);

// Write the elements of `from`, converted to the dtype of `to`, which has the same sizes.
void convert_elements(const Tensor& to, const Tensor& from);

// Set all elements to a number.
void fill_elements(const Tensor& tensor, const Value& number);

// Throw Error if the tensor is a constant of the model.
void check_writable(const Tensor& tensor);

} // namespace torchmdla::native
