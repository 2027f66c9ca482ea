// Views of tensors, and their types.

#include "views.h"

#include "operators.h"

#include <algorithm>
#include <vector>

namespace torchmdla::native {

size_t dimension_of(int64_t dimension, size_t rank) {
  const auto count = std::max<int64_t>(static_cast<int64_t>(rank), 1);
  if (dimension < -count || dimension >= count)
    throw Error(TMDLA_FAILED, "Dimension out of range (expected to be in range of [" +
                                  std::to_string(-count) + ", " + std::to_string(count - 1) +
                                  "], but got " + std::to_string(dimension) + ")");
  return static_cast<size_t>(dimension < 0 ? dimension + count : dimension);
}

Dimensions numbers_of(const Value& list) {
  Dimensions numbers;
  for (const auto& item : list.items())
    numbers.push_back(item.integer());
  return numbers;
}

Value view(Arena& arena, const Tensor& base, std::span<const int64_t> sizes,
           std::span<const int64_t> strides, int64_t elements) {
  return view_of(arena, base, base.dtype, sizes, strides,
                 elements * static_cast<int64_t>(base.width()));
}

Dimensions infer_sizes(const Tensor& tensor, const Value& list) {
  auto sizes = numbers_of(list);
  const auto count = tensor.count();
  int64_t* const unknown = std::ranges::find(sizes, -1);
  const bool is_inferred = unknown != sizes.end();
  if (is_inferred) *unknown = 1;
  if (std::ranges::find_if(sizes, [](int64_t size) { return size < 0; }) != sizes.end())
    fail("only one dimension can be inferred, and others are not negative");
  const auto known = element_count(sizes);
  if (is_inferred && known > 0 && count % known == 0)
    *unknown = static_cast<int64_t>(count / known);
  else if (is_inferred || known != count)
    fail("shape '" + sizes_text(numbers_of(list)) + "' is invalid for input of size " +
         std::to_string(count));
  return sizes;
}

// Each new dimension is a part of a run of old dimensions that continue each other in memory.
std::optional<Dimensions> view_strides(const Tensor& tensor, std::span<const int64_t> sizes) {
  Dimensions strides;
  strides.resize(sizes.size());
  if (tensor.count() == 0) return contiguous(sizes);
  auto next = static_cast<std::ptrdiff_t>(sizes.size()) - 1;
  int64_t base = tensor.rank > 0 ? tensor.strides().back() : 1, old_count = 1, new_count = 1;
  for (auto i = static_cast<std::ptrdiff_t>(tensor.rank) - 1; i >= 0; --i) {
    old_count *= tensor.sizes()[static_cast<size_t>(i)];
    const auto outer = static_cast<size_t>(i) - 1;
    const bool ends =
        i == 0 || (tensor.sizes()[outer] != 1 && tensor.strides()[outer] != old_count * base);
    if (!ends) continue;
    while (next >= 0 && (new_count < old_count || sizes[static_cast<size_t>(next)] == 1)) {
      strides[static_cast<size_t>(next)] = new_count * base;
      new_count *= sizes[static_cast<size_t>(next--)];
    }
    if (new_count != old_count) return std::nullopt;
    if (i > 0) {
      base = tensor.strides()[outer];
      new_count = old_count = 1;
    }
  }
  for (; next >= 0; --next)
    strides[static_cast<size_t>(next)] = new_count * base;
  return strides;
}

Value reshape(Arena& arena, const Value& value, std::span<const int64_t> sizes) {
  const auto& tensor = value.tensor();
  if (const auto strides = view_strides(tensor, sizes))
    return view(arena, tensor, sizes, *strides, 0);
  return view(arena, clone(arena, tensor).tensor(), sizes, contiguous(sizes), 0);
}

Value narrow(Arena& arena, const Tensor& tensor, size_t dimension, int64_t start, int64_t length,
             int64_t step) {
  Dimensions sizes(tensor.sizes()), strides(tensor.strides());
  sizes[dimension] = length;
  const auto offset = start * strides[dimension];
  strides[dimension] *= step;
  return view(arena, tensor, sizes, strides, offset);
}

namespace {

void select(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  if (tensor.rank == 0) fail("select() cannot be applied to a 0-dim tensor.");
  const auto dimension = dimension_of(call[1].integer(), tensor.rank);
  const auto size = tensor.sizes()[dimension];
  auto index = call[2].integer();
  if (index < -size || index >= size)
    throw Raised("builtins.IndexError",
                 "select(): index " + std::to_string(index) + " out of range for tensor of size [" +
                     sizes_text(tensor.sizes()) + "] at dimension " + std::to_string(dimension));
  if (index < 0) index += size;
  Dimensions sizes(tensor.sizes()), strides(tensor.strides());
  const auto offset = index * strides[dimension];
  sizes.erase(dimension);
  strides.erase(dimension);
  call.set(view(call.arena, tensor, sizes, strides, offset));
}

void slice(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  if (tensor.rank == 0) fail("slice() cannot be applied to a 0-dim tensor.");
  const auto dimension = dimension_of(call[1].integer(), tensor.rank);
  const auto size = tensor.sizes()[dimension];
  // A step beyond the size leaves one element.
  const auto step = std::min(call.integer(4, 1), size + 1);
  if (step <= 0) fail("slice step must be positive");
  const auto limit = [&](int64_t index) {
    return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size);
  };
  const auto start = limit(call.integer(2, 0)), end = std::max(start, limit(call.integer(3, size)));
  call.set(narrow(call.arena, tensor, dimension, start, (end - start + step - 1) / step, step));
}

void narrow_to(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  const auto dimension = dimension_of(call[1].integer(), tensor.rank);
  if (tensor.rank == 0) fail("narrow() cannot be applied to a 0-dim tensor.");
  const auto size = tensor.sizes()[dimension], length = call[3].integer();
  auto start = call[2].integer();
  if (start < 0) start += size;
  if (start < 0 || length < 0 || start > size - length)
    fail("start (" + std::to_string(start) + ") + length (" + std::to_string(length) +
         ") exceeds dimension size (" + std::to_string(size) + ").");
  call.set(narrow(call.arena, tensor, dimension, start, length, 1));
}

void unsqueeze(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  const auto dimension = dimension_of(call[1].integer(), tensor.rank + 1);
  Dimensions sizes(tensor.sizes()), strides(tensor.strides());
  strides.insert(dimension, dimension < tensor.rank ? sizes[dimension] * strides[dimension] : 1);
  sizes.insert(dimension, 1);
  call.set(view(call.arena, tensor, sizes, strides, 0));
}

// Drop the dimensions of size 1 that `is_chosen` accepts.
template <class IsChosen> void squeeze_where(const OperatorCall& call, IsChosen is_chosen) {
  const auto& tensor = call[0].tensor();
  Dimensions sizes, strides;
  for (size_t i = 0; i < tensor.rank; ++i) {
    if (tensor.sizes()[i] == 1 && is_chosen(i)) continue;
    sizes.push_back(tensor.sizes()[i]);
    strides.push_back(tensor.strides()[i]);
  }
  call.set(view(call.arena, tensor, sizes, strides, 0));
}

void squeeze(const OperatorCall& call) {
  squeeze_where(call, [](size_t) { return true; });
}

void squeeze_dimension(const OperatorCall& call) {
  const auto dimension = dimension_of(call[1].integer(), call[0].tensor().rank);
  squeeze_where(call, [&](size_t place) { return place == dimension; });
}

void squeeze_dimensions(const OperatorCall& call) {
  auto dimensions = numbers_of(call[1]);
  for (auto& dimension : dimensions)
    dimension = static_cast<int64_t>(dimension_of(dimension, call[0].tensor().rank));
  squeeze_where(call, [&](size_t place) {
    return std::ranges::find(dimensions, static_cast<int64_t>(place)) != dimensions.end();
  });
}

void view_as_sizes(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  const auto sizes = infer_sizes(tensor, call[1]);
  const auto strides = view_strides(tensor, sizes);
  if (!strides)
    fail("view size is not compatible with input tensor's size and stride (at least one dimension "
         "spans across two contiguous subspaces). Use .reshape(...) instead.");
  call.set(view(call.arena, tensor, sizes, *strides, 0));
}

void reshape_to(const OperatorCall& call) {
  call.set(reshape(call.arena, call[0], infer_sizes(call[0].tensor(), call[1])));
}

void view_as(const OperatorCall& call) {
  const Dimensions sizes(call[1].tensor().sizes());
  if (element_count(sizes) != call[0].tensor().count())
    fail("the tensors have other numbers of elements");
  call.set(reshape(call.arena, call[0], sizes));
}

void flatten(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  const auto first = dimension_of(call[1].integer(), tensor.rank),
             last = dimension_of(call[2].integer(), tensor.rank);
  if (first > last) fail("flatten() has invalid args: start_dim cannot come after end_dim");
  if (tensor.rank > 0 && first == last) {
    call.set(Value(call[0]));
    return;
  }
  Dimensions sizes;
  int64_t joined = 1;
  for (size_t i = 0; i < tensor.rank; ++i) {
    if (i < first || i > last) sizes.push_back(tensor.sizes()[i]);
    if (i >= first && i <= last) joined *= tensor.sizes()[i];
    if (i == last) sizes.push_back(joined);
  }
  if (tensor.rank == 0) sizes.push_back(1);
  call.set(reshape(call.arena, call[0], sizes));
}

Value permuted(const OperatorCall& call, const Dimensions& order) {
  const auto& tensor = call[0].tensor();
  Dimensions sizes, strides;
  for (const auto dimension : order) {
    sizes.push_back(tensor.sizes()[static_cast<size_t>(dimension)]);
    strides.push_back(tensor.strides()[static_cast<size_t>(dimension)]);
  }
  return view(call.arena, tensor, sizes, strides, 0);
}

Dimensions in_order(size_t rank) {
  Dimensions order;
  for (size_t i = 0; i < rank; ++i)
    order.push_back(static_cast<int64_t>(i));
  return order;
}

void permute(const OperatorCall& call) {
  const auto rank = call[0].tensor().rank;
  auto order = numbers_of(call[1]);
  if (order.size() != rank)
    fail("permute(sparse_coo): number of dimensions in the tensor input does not match");
  for (auto& dimension : order)
    dimension = static_cast<int64_t>(dimension_of(dimension, rank));
  auto sorted = order;
  std::ranges::sort(sorted);
  if (!std::ranges::equal(sorted, in_order(rank)))
    fail("permute(): duplicate dims are not allowed.");
  call.set(permuted(call, order));
}

void transpose(const OperatorCall& call) {
  const auto rank = call[0].tensor().rank;
  auto order = in_order(rank);
  const auto first = dimension_of(call[1].integer(), rank),
             second = dimension_of(call[2].integer(), rank);
  if (rank > 0) std::swap(order[first], order[second]);
  call.set(permuted(call, order));
}

void transpose_matrix(const OperatorCall& call) {
  const auto rank = call[0].tensor().rank;
  if (rank > 2) fail("t() expects a tensor with <= 2 dimensions");
  auto order = in_order(rank);
  std::ranges::reverse(order);
  call.set(permuted(call, order));
}

Value expanded(Arena& arena, const Tensor& tensor, Dimensions sizes) {
  if (sizes.size() < tensor.rank)
    fail("expand: the number of sizes must not be less than the dimensions");
  Dimensions strides;
  strides.resize(sizes.size());
  const auto added = sizes.size() - tensor.rank;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto old = i < added ? 1 : tensor.sizes()[i - added];
    if (sizes[i] == -1 && i >= added) sizes[i] = old;
    if (sizes[i] < 0 || (sizes[i] != old && old != 1))
      fail("The expanded size of the tensor (" + std::to_string(sizes[i]) +
           ") must match the existing size (" + std::to_string(old) + ")");
    strides[i] = i < added || sizes[i] != old ? 0 : tensor.strides()[i - added];
    if (i < added && sizes[i] == 1)
      strides[i] = added < sizes.size() ? tensor.sizes()[0] * tensor.strides()[0] : 1;
  }
  return view(arena, tensor, sizes, strides, 0);
}

void expand(const OperatorCall& call) {
  call.set(expanded(call.arena, call[0].tensor(), numbers_of(call[1])));
}

void expand_as(const OperatorCall& call) {
  call.set(expanded(call.arena, call[0].tensor(), Dimensions(call[1].tensor().sizes())));
}

void unbind(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  if (tensor.rank == 0) fail("Dimension specified as 0 but tensor has no dimensions");
  const auto dimension = dimension_of(call[1].integer(), tensor.rank);
  Dimensions sizes(tensor.sizes()), strides(tensor.strides());
  const auto count = sizes[dimension], step = strides[dimension];
  sizes.erase(dimension);
  strides.erase(dimension);
  auto list = new_list(call.arena, static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    append(list.list(), view(call.arena, tensor, sizes, strides, i * step));
  call.set(std::move(list));
}

// Parts of this many elements of a dimension each; the last one may be smaller.
Value parts_of(const OperatorCall& call, size_t dimension, int64_t length) {
  const auto& tensor = call[0].tensor();
  const auto size = tensor.sizes()[dimension];
  auto list = new_list(call.arena, 0);
  for (int64_t start = 0; start < size || start == 0; start += std::max<int64_t>(length, 1))
    append(list.list(),
           narrow(call.arena, tensor, dimension, start, std::min(length, size - start), 1));
  return list;
}

size_t divided_dimension(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  if (tensor.rank == 0) fail("a tensor without dimensions cannot be divided");
  return dimension_of(call[2].integer(), tensor.rank);
}

void split(const OperatorCall& call) {
  const auto length = call[1].integer();
  const auto dimension = divided_dimension(call);
  if (length < 0 || (length == 0 && call[0].tensor().sizes()[dimension] != 0))
    fail("split expects split_size be positive");
  call.set(parts_of(call, dimension, length));
}

void chunk(const OperatorCall& call) {
  const auto count = call[1].integer();
  if (count <= 0) fail("chunk expects `chunks` to be greater than 0");
  const auto dimension = divided_dimension(call);
  const auto size = call[0].tensor().sizes()[dimension];
  call.set(parts_of(call, dimension, size / count + (size % count != 0)));
}

void split_sizes(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  const auto dimension = divided_dimension(call);
  auto list = new_list(call.arena, 0);
  int64_t start = 0;
  for (const auto length : numbers_of(call[1])) {
    if (length < 0 || length > tensor.sizes()[dimension] - start)
      fail("split_with_sizes expects split_sizes to sum exactly to the size of the dimension");
    append(list.list(), narrow(call.arena, tensor, dimension, start, length, 1));
    start += length;
  }
  if (start != tensor.sizes()[dimension])
    fail("split_with_sizes expects split_sizes to sum exactly to the size of the dimension");
  call.set(std::move(list));
}

void pass(const OperatorCall& call) {
  call.set(Value(call[0]));
}

void alias(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  call.set(view(call.arena, tensor, tensor.sizes(), tensor.strides(), 0));
}

// Types

void size_list(const OperatorCall& call) {
  call.set(new_integers(call.arena, call[0].tensor().sizes()));
}

void stride_list(const OperatorCall& call) {
  call.set(new_integers(call.arena, call[0].tensor().strides()));
}

void size_at(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  if (tensor.rank == 0) fail("Dimension specified as 0 but tensor has no dimensions");
  call.set(tensor.sizes()[dimension_of(call[1].integer(), tensor.rank)]);
}

void stride_at(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  if (tensor.rank == 0) fail("Dimension specified as 0 but tensor has no dimensions");
  call.set(tensor.strides()[dimension_of(call[1].integer(), tensor.rank)]);
}

void rank(const OperatorCall& call) {
  call.set(int64_t{call[0].tensor().rank});
}

void count(const OperatorCall& call) {
  call.set(static_cast<int64_t>(call[0].tensor().count()));
}

void length(const OperatorCall& call) {
  const auto& tensor = call[0].tensor();
  if (tensor.rank == 0) fail("len() of a 0-d tensor");
  call.set(tensor.sizes()[0]);
}

void is_contiguous(const OperatorCall& call) {
  call.set(call[0].tensor().is_contiguous());
}

void dtype(const OperatorCall& call) {
  call.set(int64_t{call[0].tensor().dtype});
}

void device(const OperatorCall& call) {
  call[0].tensor();
  call.set(Value::device());
}

bool is_real(int64_t dtype) {
  return dtype == TMDLA_FLOAT16 || dtype == TMDLA_FLOAT32 || dtype == TMDLA_FLOAT64 ||
         dtype == TMDLA_BFLOAT16;
}

void is_floating_point(const OperatorCall& call) {
  call.set(is_real(call[0].tensor().dtype));
}

void is_complex(const OperatorCall& call) {
  const auto dtype = call[0].tensor().dtype;
  call.set(dtype == TMDLA_COMPLEX64 || dtype == TMDLA_COMPLEX128);
}

template <bool value> void always(const OperatorCall& call) {
  call[0].tensor();
  call.set(value);
}

void strided_layout(const OperatorCall& call) {
  call[0].tensor();
  call.set(int64_t{0});
}

} // namespace

std::span<const Operator> view_operators() {
  static const std::vector<Operator> table{
      {"aten::select.int", 3, 3, 1, select},
      {"aten::slice.Tensor", 5, 5, 1, slice},
      {"aten::narrow", 4, 4, 1, narrow_to},
      {"aten::unsqueeze", 2, 2, 1, unsqueeze},
      {"aten::squeeze", 1, 1, 1, squeeze},
      {"aten::squeeze.dim", 2, 2, 1, squeeze_dimension},
      {"aten::squeeze.dims", 2, 2, 1, squeeze_dimensions},
      {"aten::view", 2, 2, 1, view_as_sizes},
      {"aten::reshape", 2, 2, 1, reshape_to},
      {"aten::view_as", 2, 2, 1, view_as},
      {"aten::reshape_as", 2, 2, 1, view_as},
      {"aten::flatten.using_ints", 3, 3, 1, flatten},
      {"aten::permute", 2, 2, 1, permute},
      {"aten::transpose.int", 3, 3, 1, transpose},
      {"aten::t", 1, 1, 1, transpose_matrix},
      {"aten::expand", 3, 3, 1, expand},
      {"aten::expand_as", 2, 2, 1, expand_as},
      {"aten::unbind.int", 2, 2, 1, unbind},
      {"aten::split.Tensor", 3, 3, 1, split},
      {"aten::split.sizes", 3, 3, 1, split_sizes},
      {"aten::split_with_sizes", 3, 3, 1, split_sizes},
      {"aten::chunk", 3, 3, 1, chunk},
      {"aten::detach", 1, 1, 1, alias},
      {"aten::alias", 1, 1, 1, alias},
      {"aten::detach_", 1, 1, 1, pass},
      {"aten::lift_fresh", 1, 1, 1, pass},
      {"aten::size", 1, 1, 1, size_list},
      {"aten::stride", 1, 1, 1, stride_list},
      {"aten::size.int", 2, 2, 1, size_at},
      {"aten::stride.int", 2, 2, 1, stride_at},
      {"aten::dim", 1, 1, 1, rank},
      {"aten::numel", 1, 1, 1, count},
      {"aten::len.Tensor", 1, 1, 1, length},
      {"aten::is_contiguous", 1, 1, 1, is_contiguous},
      {"prim::dtype", 1, 1, 1, dtype},
      {"prim::device", 1, 1, 1, device},
      {"prim::layout", 1, 1, 1, strided_layout},
      {"aten::is_floating_point", 1, 1, 1, is_floating_point},
      {"aten::is_complex", 1, 1, 1, is_complex},
      {"prim::is_cpu", 1, 1, 1, always<true>},
      {"prim::is_cuda", 1, 1, 1, always<false>},
      {"prim::is_sparse", 1, 1, 1, always<false>},
      {"prim::is_quantized", 1, 1, 1, always<false>},
      {"prim::requires_grad", 1, 1, 1, always<false>},
  };
  return table;
}

} // namespace torchmdla::native
