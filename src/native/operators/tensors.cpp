// New tensors, copies and conversions.

#include "elements.h"
#include "operators.h"
#include "views.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace torchmdla::native {

namespace {

constexpr int64_t default_dtype = TMDLA_FLOAT32; // the exporter refuses another one

// Return the dtype of a new tensor of these numbers.
int64_t dtype_for(const Value& number) {
  switch (number.kind()) {
  case Kind::boolean:
    return TMDLA_BOOL;
  case Kind::integer:
    return TMDLA_INT64;
  default:
    return default_dtype;
  }
}

Value filled(Arena& arena, int64_t dtype, std::span<const int64_t> sizes, const Value& number) {
  if (element_bytes(dtype) == 0) fail("no tensor has " + dtype_name(dtype));
  for (const auto size : sizes)
    if (size < 0) fail("Trying to create tensor with negative dimension " + std::to_string(size));
  auto tensor = new_tensor(arena, dtype, sizes);
  fill_elements(tensor.tensor(), number);
  return tensor;
}

// New tensors: sizes, dtype, layout, device, pin_memory. The content of empty ones is 0, because
// memory of earlier calls would make programs that read it behave at random.
template <int64_t number> void constant(const OperatorCall& call) {
  call.set(filled(call.arena, call.integer(1, default_dtype), numbers_of(call[0]), Value(number)));
}

template <int64_t number> void constant_like(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  call.set(filled(call.arena, call.integer(1, tensor.dtype), tensor.sizes(), Value(number)));
}

template <int64_t number> void new_constant(const OperatorCall& call) {
  call.set(filled(call.arena, call.integer(2, call[0].tensor().dtype), numbers_of(call[1]),
                  Value(number)));
}

void full(const OperatorCall& call) {
  call.set(filled(call.arena, call.integer(2, dtype_for(call[1])), numbers_of(call[0]), call[1]));
}

void full_like(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  call.set(filled(call.arena, call.integer(2, tensor.dtype), tensor.sizes(), call[1]));
}

void new_full(const OperatorCall& call) {
  call.set(
      filled(call.arena, call.integer(3, call[0].tensor().dtype), numbers_of(call[1]), call[2]));
}

void scalar_tensor(const OperatorCall& call) {
  call.set(filled(call.arena, call.integer(1, dtype_for(call[0])), {}, call[0]));
}

void number_to_tensor(const OperatorCall& call) {
  const bool is_real = call[0].kind() == Kind::real;
  const auto dtype = is_real ? int64_t{TMDLA_FLOAT64} : dtype_for(call[0]);
  call.set(filled(call.arena, dtype, {}, call[0]));
}

// Start, end, step; then dtype.
template <size_t bounds> void range(const OperatorCall& call) {
  const Value start = bounds > 1 ? call[0] : Value(int64_t{0}), end = call[bounds > 1 ? 1 : 0],
              step = bounds > 2 ? call[2] : Value(int64_t{1});
  const bool is_integer =
      start.kind() == Kind::integer && end.kind() == Kind::integer && step.kind() == Kind::integer;
  if (step.number() == 0) fail("step must be nonzero");
  if ((end.number() - start.number()) * step.number() < 0)
    fail("upper bound and lower bound inconsistent with step sign");
  constexpr double most = 0x1p47; // no memory has more elements
  const auto length = std::ceil((end.number() - start.number()) / step.number());
  if (!(length >= 0 && length < most)) fail("the range is too long");
  const auto count = static_cast<int64_t>(length);
  const auto dtype = call.integer(bounds, is_integer ? int64_t{TMDLA_INT64} : default_dtype);
  auto result = filled(call.arena, dtype, {&count, 1}, Value(int64_t{0}));
  const auto& tensor = result.tensor();
  for (int64_t i = 0; i < count; ++i)
    store_element(dtype, tensor.data() + static_cast<size_t>(i) * tensor.width(),
                  is_integer
                      ? Value(static_cast<int64_t>(static_cast<uint64_t>(start.integer()) +
                                                   static_cast<uint64_t>(i) *
                                                       static_cast<uint64_t>(step.integer())))
                      : Value(start.number() + static_cast<double>(i) * step.number()));
  call.set(std::move(result));
}

// A tensor of numbers in nested lists

void add_sizes(const Value& value, Dimensions& sizes) {
  if (value.kind() != Kind::list) return;
  sizes.push_back(static_cast<int64_t>(value.items().size()));
  if (!value.items().empty()) add_sizes(value.items()[0], sizes);
}

const Value& first_number(const Value& value) {
  return value.kind() == Kind::list && !value.items().empty() ? first_number(value.items()[0])
                                                              : value;
}

void store_numbers(const Value& value, const Tensor& tensor, size_t depth, std::byte*& next) {
  if (depth == tensor.rank) {
    store_element(tensor.dtype, next, value);
    next += tensor.width();
    return;
  }
  const auto items = value.items();
  if (static_cast<int64_t>(items.size()) != tensor.sizes()[depth])
    fail("Expected sequence of length " + std::to_string(tensor.sizes()[depth]) + " at dim " +
         std::to_string(depth) + " (got " + std::to_string(items.size()) + ")");
  for (const auto& item : items)
    store_numbers(item, tensor, depth + 1, next);
}

void tensor_of(const OperatorCall& call) {
  Dimensions sizes;
  add_sizes(call[0], sizes);
  const auto dtype = call.integer(1, dtype_for(first_number(call[0])));
  auto result = new_tensor(call.arena, dtype, sizes);
  auto* next = result.tensor().data();
  store_numbers(call[0], result.tensor(), 0, next);
  call.set(std::move(result));
}

// Copies and conversions

Value converted(Arena& arena, const Value& value, int64_t dtype, bool copies) {
  const auto& tensor = value.tensor();
  if (tensor.dtype == dtype && !copies) return value;
  if (element_bytes(dtype) == 0) fail("no tensor has " + dtype_name(dtype));
  // The layout stays if the elements are dense in some order.
  auto result = new_tensor(arena, dtype, tensor.sizes(), dense_strides_like(tensor));
  convert_elements(result.tensor(), tensor);
  return result;
}

bool is_true(const OperatorCall& call, size_t place) {
  return call[place].boolean();
}

// to(self, dtype, non_blocking, copy, memory_format)
void to_dtype(const OperatorCall& call) {
  call.set(converted(call.arena, call[0], call[1].integer(), is_true(call, 3)));
}

// to(self, device, dtype, non_blocking, copy, memory_format)
void to_device(const OperatorCall& call) {
  call.set(converted(call.arena, call[0], call[2].integer(), is_true(call, 4)));
}

// to(self, device?, dtype?, non_blocking, copy)
void to_device_or_dtype(const OperatorCall& call) {
  call.set(
      converted(call.arena, call[0], call.integer(2, call[0].tensor().dtype), is_true(call, 4)));
}

// to(self, dtype?, non_blocking, copy)
void to_dtype_only(const OperatorCall& call) {
  call.set(
      converted(call.arena, call[0], call.integer(1, call[0].tensor().dtype), is_true(call, 3)));
}

// to(self, dtype?, layout, device, pin_memory, non_blocking, copy, memory_format)
void to_dtype_layout(const OperatorCall& call) {
  call.set(
      converted(call.arena, call[0], call.integer(1, call[0].tensor().dtype), is_true(call, 6)));
}

// to(self, other, non_blocking, copy, memory_format)
void to_other(const OperatorCall& call) {
  call.set(converted(call.arena, call[0], call[1].tensor().dtype, is_true(call, 3)));
}

void type_as(const OperatorCall& call) {
  call.set(converted(call.arena, call[0], call[1].tensor().dtype, false));
}

void check_format(const OperatorCall& call, size_t place) {
  constexpr int64_t contiguous_format = 0, preserve_format = 1;
  const auto format = call.integer(place, contiguous_format);
  if (format != contiguous_format && format != preserve_format)
    fail("memory formats other than the contiguous one are in groups only");
}

void clone_tensor(const OperatorCall& call) {
  check_format(call, 1);
  const auto& tensor = call[0].tensor();
  const bool preserves = call.integer(1, 1) == 1;
  call.set(preserves ? converted(call.arena, call[0], tensor.dtype, true)
                     : clone(call.arena, tensor));
}

void make_contiguous(const OperatorCall& call) {
  check_format(call, 1);
  const auto& tensor = call[0].tensor();
  call.set(tensor.is_contiguous() ? Value(call[0]) : clone(call.arena, tensor));
}

// Elements of `from` for each element of a tensor of these sizes.
Value broadcast(Arena& arena, const Tensor& from, std::span<const int64_t> sizes) {
  Dimensions strides;
  strides.resize(sizes.size());
  if (from.rank > sizes.size()) fail("a tensor of more dimensions is copied to one of fewer");
  const auto added = sizes.size() - from.rank;
  for (size_t i = added; i < sizes.size(); ++i) {
    const auto size = from.sizes()[i - added];
    if (size != sizes[i] && size != 1)
      fail("The size of tensor a (" + std::to_string(sizes[i]) +
           ") must match the size of tensor b (" + std::to_string(size) +
           ") at non-singleton dimension " + std::to_string(i));
    strides[i] = size == 1 ? 0 : from.strides()[i - added];
  }
  return view(arena, from, sizes, strides, 0);
}

void copy_into(const OperatorCall& call) {
  const auto& to = call[0].tensor();
  check_writable(to);
  auto from = broadcast(call.arena, call[1].tensor(), to.sizes());
  // Tensors may overlap in memory, so a copy goes through memory of its own.
  if (to.storage == from.tensor().storage) from = clone(call.arena, from.tensor());
  convert_elements(to, from.tensor());
  call.set(Value(call[0]));
}

void fill(const OperatorCall& call) {
  check_writable(call[0].tensor());
  fill_elements(call[0].tensor(), call[1]);
  call.set(Value(call[0]));
}

void zero(const OperatorCall& call) {
  check_writable(call[0].tensor());
  fill_elements(call[0].tensor(), Value(int64_t{0}));
  call.set(Value(call[0]));
}

// Numbers of tensors with one element

Value item_of(const Value& value) {
  const auto& tensor = value.tensor();
  if (tensor.count() != 1)
    fail("a Tensor with " + std::to_string(tensor.count()) +
         " elements cannot be converted to Scalar");
  return load_element(tensor.dtype, tensor.data());
}

void item(const OperatorCall& call) {
  call.set(item_of(call[0]));
}

void to_bool(const OperatorCall& call) {
  const auto number = item_of(call[0]);
  call.set(number.kind() == Kind::boolean ? number.boolean() : number.number() != 0);
}

void to_int(const OperatorCall& call) {
  const auto number = item_of(call[0]);
  call.set(number.kind() == Kind::boolean ? int64_t{number.boolean()}
                                          : static_cast<int64_t>(number.number()));
}

void to_integer_exactly(const OperatorCall& call) {
  const auto number = item_of(call[0]);
  if (number.kind() == Kind::integer)
    call.set(number);
  else
    to_int(call);
}

void to_float(const OperatorCall& call) {
  const auto number = item_of(call[0]);
  call.set(number.kind() == Kind::boolean ? double{number.boolean() ? 1.0 : 0.0} : number.number());
}

Value list_of(const OperatorCall& call, const Tensor& tensor, size_t depth, int64_t offset) {
  const auto width = static_cast<int64_t>(tensor.width());
  if (depth == tensor.rank) return load_element(tensor.dtype, tensor.data() + offset * width);
  const auto size = tensor.sizes()[depth];
  auto list = new_list(call.arena, static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i)
    append(list.list(), list_of(call, tensor, depth + 1, offset + i * tensor.strides()[depth]));
  return list;
}

// tolist: the dimensions and the type are those of the program's annotation.
void to_list(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  if (call[1].integer() != int64_t{tensor.rank})
    fail("Output annotation list dimension and runtime tensor dimension must match for tolist()");
  call.set(list_of(call, tensor, 0, 0));
}

// Joined tensors

Dimensions joined_sizes(std::span<const Value> tensors, size_t dimension) {
  Dimensions sizes(tensors[0].tensor().sizes());
  sizes[dimension] = 0;
  for (const auto& value : tensors) {
    const auto& tensor = value.tensor();
    if (tensor.dtype != tensors[0].tensor().dtype)
      fail("tensors of several dtypes are joined in groups only");
    if (tensor.rank != sizes.size()) fail("Tensors must have same number of dimensions");
    for (size_t i = 0; i < sizes.size(); ++i)
      if (i != dimension && tensor.sizes()[i] != sizes[i])
        fail("Sizes of tensors must match except in dimension " + std::to_string(dimension) + ".");
    sizes[dimension] += tensor.sizes()[dimension];
  }
  return sizes;
}

bool is_legacy_empty(const Value& value) {
  return value.tensor().rank == 1 && value.tensor().sizes()[0] == 0;
}

void cat(const OperatorCall& call) {
  auto items = call[0].items();
  // PyTorch skips empty tensors of one dimension.
  std::vector<Value> kept;
  if (std::ranges::any_of(items, is_legacy_empty) && !std::ranges::all_of(items, is_legacy_empty)) {
    std::ranges::remove_copy_if(items, std::back_inserter(kept), is_legacy_empty);
    items = kept;
  }
  if (items.empty()) fail("expected a non-empty list of Tensors");
  const auto& first = items[0].tensor();
  if (first.rank == 0) fail("zero-dimensional tensor cannot be concatenated");
  const auto dimension = dimension_of(call[1].integer(), first.rank);
  auto result = new_tensor(call.arena, first.dtype, joined_sizes(items, dimension));
  int64_t start = 0;
  for (const auto& value : items) {
    const auto length = value.tensor().sizes()[dimension];
    copy_tensor(narrow(call.arena, result.tensor(), dimension, start, length, 1).tensor(),
                value.tensor());
    start += length;
  }
  call.set(std::move(result));
}

void stack(const OperatorCall& call) {
  const auto items = call[0].items();
  if (items.empty()) fail("stack expects a non-empty TensorList");
  const auto& first = items[0].tensor();
  const auto dimension = dimension_of(call[1].integer(), first.rank + 1);
  Dimensions sizes(first.sizes());
  sizes.insert(dimension, static_cast<int64_t>(items.size()));
  auto result = new_tensor(call.arena, first.dtype, sizes);
  for (size_t i = 0; i < items.size(); ++i) {
    const auto& tensor = items[i].tensor();
    if (tensor.dtype != first.dtype || !std::ranges::equal(tensor.sizes(), first.sizes()))
      fail("stack expects each tensor to be equal size and of one dtype");
    Dimensions part_sizes(sizes), part_strides(result.tensor().strides());
    const auto offset = static_cast<int64_t>(i) * part_strides[dimension];
    part_sizes.erase(dimension);
    part_strides.erase(dimension);
    copy_tensor(view(call.arena, result.tensor(), part_sizes, part_strides, offset).tensor(),
                tensor);
  }
  call.set(std::move(result));
}

} // namespace

std::span<const Operator> tensor_operators() {
  static const std::vector<Operator> table{
      {"aten::zeros", 5, 5, 1, constant<0>},
      {"aten::ones", 5, 5, 1, constant<1>},
      {"aten::empty.memory_format", 6, 6, 1, constant<0>},
      {"aten::zeros_like", 6, 6, 1, constant_like<0>},
      {"aten::ones_like", 6, 6, 1, constant_like<1>},
      {"aten::empty_like", 6, 6, 1, constant_like<0>},
      {"aten::new_zeros", 6, 6, 1, new_constant<0>},
      {"aten::new_ones", 6, 6, 1, new_constant<1>},
      {"aten::new_empty", 6, 6, 1, new_constant<0>},
      {"aten::full", 6, 6, 1, full},
      {"aten::full_like", 7, 7, 1, full_like},
      {"aten::new_full", 7, 7, 1, new_full},
      {"aten::scalar_tensor", 5, 5, 1, scalar_tensor},
      {"prim::NumToTensor.Scalar", 1, 1, 1, number_to_tensor},
      {"prim::NumToTensor.bool", 1, 1, 1, number_to_tensor},
      {"aten::arange", 5, 5, 1, range<1>},
      {"aten::arange.start", 6, 6, 1, range<2>},
      {"aten::arange.start_step", 7, 7, 1, range<3>},
      {"aten::tensor", 4, 4, 1, tensor_of},
      {"aten::tensor.int", 4, 4, 1, tensor_of},
      {"aten::tensor.float", 4, 4, 1, tensor_of},
      {"aten::tensor.bool", 4, 4, 1, tensor_of},
      {"aten::as_tensor.int", 3, 3, 1, tensor_of},
      {"aten::as_tensor.float", 3, 3, 1, tensor_of},
      {"aten::as_tensor.bool", 3, 3, 1, tensor_of},
      {"aten::to.dtype", 5, 5, 1, to_dtype},
      {"aten::to.device", 6, 6, 1, to_device},
      {"aten::to.prim_Device", 5, 5, 1, to_device_or_dtype},
      {"aten::to.prim_dtype", 4, 4, 1, to_dtype_only},
      {"aten::to.dtype_layout", 8, 8, 1, to_dtype_layout},
      {"aten::to.other", 5, 5, 1, to_other},
      {"aten::type_as", 2, 2, 1, type_as},
      {"aten::clone", 2, 2, 1, clone_tensor},
      {"aten::contiguous", 2, 2, 1, make_contiguous},
      {"aten::copy_", 3, 3, 1, copy_into},
      {"aten::fill_.Scalar", 2, 2, 1, fill},
      {"aten::zero_", 1, 1, 1, zero},
      {"aten::item", 1, 1, 1, item},
      {"aten::ScalarImplicit", 1, 1, 1, item},
      {"aten::Bool.Tensor", 1, 1, 1, to_bool},
      {"aten::Int.Tensor", 1, 1, 1, to_integer_exactly},
      {"aten::IntImplicit", 1, 1, 1, to_integer_exactly},
      {"aten::Float.Tensor", 1, 1, 1, to_float},
      {"aten::FloatImplicit", 1, 1, 1, to_float},
      {"prim::tolist", 3, 3, 1, to_list},
      {"aten::cat", 2, 2, 1, cat},
      {"aten::stack", 2, 2, 1, stack},
  };
  return table;
}

} // namespace torchmdla::native
