#include "views.h"

#include "base/forks.h"

#include <ATen/EmptyTensor.h>

#include <functional>
#include <unordered_map>

namespace torchmdla::acap {

namespace {

using Arguments = std::vector<c10::IValue>;

c10::OperatorHandle operator_named(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

std::shared_ptr<const View> view_of(const at::Tensor& tensor) {
  const auto* impl = dynamic_cast<const TensorImpl*>(tensor.unsafeGetTensorImpl());
  const ForkSafeLock guard(graph_mutex());
  return impl ? impl->view() : nullptr;
}

// Return whether ops can express a view of `tensor`: it is the base, or is itself such a view.
bool is_expressible_view(const at::Tensor& tensor) {
  const ForkSafeLock guard(graph_mutex());
  if (Storage::of(tensor).base() == Geometry::of(tensor)) return true;
  const auto* impl = dynamic_cast<const TensorImpl*>(tensor.unsafeGetTensorImpl());
  return impl && impl->view();
}

Geometry geometry_in_storage(const at::Tensor& self, const at::Tensor& meta) {
  auto geometry = Geometry::of(meta);
  geometry.offset += self.storage_offset();
  return geometry;
}

// Return one view that `op` takes with `arguments`, of which the first represents `self`.
at::Tensor make_op_view(const at::Tensor& self, const at::Tensor& meta,
                        const c10::OperatorHandle& op, Arguments arguments) {
  const auto geometry = geometry_in_storage(self, meta);
  if (!is_expressible_view(self)) return make_view(self, geometry, nullptr);
  arguments.front() = {};
  const auto type = at::detail::empty_meta(meta.sizes(), meta.scalar_type());
  return make_view(self, geometry,
                   std::make_shared<const View>(
                       View{view_of(self), op, std::move(arguments), at::Tensor(type)}));
}

std::vector<at::Tensor> make_plain_views(const c10::OperatorHandle& op, const Arguments& arguments,
                                         const std::vector<at::Tensor>& metas) {
  return {make_op_view(arguments[0].toTensor(), metas[0], op, arguments)};
}

// Return a view with the same elements in the same places.
std::vector<at::Tensor> make_alias_view(const c10::OperatorHandle& op, const Arguments& arguments,
                                        const std::vector<at::Tensor>& metas) {
  const auto& self = arguments[0].toTensor();
  return {make_view(self, Geometry::of(self), view_of(self))};
}

std::vector<at::Tensor> make_strided_view(const c10::OperatorHandle& op, const Arguments& arguments,
                                          const std::vector<at::Tensor>& metas) {
  const auto& self = arguments[0].toTensor();
  auto geometry = Geometry::of(metas[0]);
  // The given offset, or the tensor's own by default, is already relative to the storage.
  geometry.offset = arguments[3].isNone() ? self.storage_offset() : arguments[3].toInt();
  geometry.check_fits(self.storage().nbytes());
  return {make_view(self, geometry, nullptr)};
}

std::vector<at::Tensor> make_reshaped_view(const c10::OperatorHandle& op,
                                           const Arguments& arguments,
                                           const std::vector<at::Tensor>& metas) {
  static const auto view = operator_named("aten::view", "");
  return {make_op_view(arguments[0].toTensor(), metas[0], view, {{}, metas[0].sizes().vec()})};
}

// Return the results of `split` and similar ops, each as a slice.
std::vector<at::Tensor> make_split_views(const c10::OperatorHandle& op, const Arguments& arguments,
                                         const std::vector<at::Tensor>& metas) {
  static const auto slice = operator_named("aten::slice", "Tensor");
  const auto& self = arguments[0].toTensor();
  const auto dimension = c10::maybe_wrap_dim(arguments[2].toInt(), self.dim());
  std::vector<at::Tensor> parts;
  int64_t start = 0;
  for (const auto& meta : metas) {
    const auto end = start + meta.size(dimension);
    parts.push_back(make_op_view(self, meta, slice, {{}, dimension, start, end, int64_t{1}}));
    start = end;
  }
  return parts;
}

std::vector<at::Tensor> make_unbound_views(const c10::OperatorHandle& op,
                                           const Arguments& arguments,
                                           const std::vector<at::Tensor>& metas) {
  static const auto select = operator_named("aten::select", "int");
  std::vector<at::Tensor> elements;
  for (const auto& meta : metas)
    elements.push_back(make_op_view(arguments[0].toTensor(), meta, select,
                                    {{}, arguments[1], static_cast<int64_t>(elements.size())}));
  return elements;
}

using ViewFunction = std::vector<at::Tensor> (*)(const c10::OperatorHandle&, const Arguments&,
                                                 const std::vector<at::Tensor>&);

const std::unordered_map<c10::OperatorName, ViewFunction>& view_functions() {
  static const std::unordered_map<c10::OperatorName, ViewFunction> table{
      {{"aten::alias", ""}, make_alias_view},
      {{"aten::detach", ""}, make_alias_view},
      {{"aten::lift_fresh", ""}, make_alias_view},
      {{"aten::as_strided", ""}, make_strided_view},
      {{"aten::_reshape_alias", ""}, make_reshaped_view},
      {{"aten::view", ""}, make_reshaped_view},
      {{"aten::split", "Tensor"}, make_split_views},
      {{"aten::split_with_sizes", ""}, make_split_views},
      // These ops return views although their schemas do not declare it.
      {{"aten::_unsafe_view", ""}, make_reshaped_view},
      {{"aten::unsafe_split", "Tensor"}, make_split_views},
      {{"aten::unsafe_split_with_sizes", ""}, make_split_views},
      {{"aten::unbind", "int"}, make_unbound_views},
      {{"aten::diagonal", ""}, make_plain_views},
      {{"aten::expand", ""}, make_plain_views},
      {{"aten::permute", ""}, make_plain_views},
      {{"aten::select", "int"}, make_plain_views},
      {{"aten::slice", "Tensor"}, make_plain_views},
      {{"aten::squeeze", ""}, make_plain_views},
      {{"aten::squeeze", "dim"}, make_plain_views},
      {{"aten::squeeze", "dims"}, make_plain_views},
      {{"aten::t", ""}, make_plain_views},
      {{"aten::transpose", "int"}, make_plain_views},
      {{"aten::unfold", ""}, make_plain_views},
      {{"aten::unsqueeze", ""}, make_plain_views},
  };
  return table;
}

// --- writing through ----------------------------------------------------------------------------

// Function that returns the new value of a view's parent after a write to the view.
using Inverse =
    std::function<ValuePtr(const View& view, const ValuePtr& parent, const ValuePtr& written)>;

ValuePtr reshape_back(const View& view, const ValuePtr& parent, const ValuePtr& written) {
  return append("aten::reshape", "", {written, parent->meta.sizes().vec()}, parent->meta);
}

ValuePtr permute_back(const View& view, const ValuePtr& parent, const ValuePtr& written) {
  const auto order = view.arguments[1].toIntVector();
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    inverse[static_cast<size_t>(c10::maybe_wrap_dim(order[i], parent->meta.dim()))] =
        static_cast<int64_t>(i);
  return append("aten::permute", "", {written, inverse}, parent->meta);
}

// Apply the op again, which is its own inverse.
ValuePtr repeat(const View& view, const ValuePtr& parent, const ValuePtr& written) {
  std::vector<Operand> operands(view.arguments.begin(), view.arguments.end());
  operands.front() = written;
  return append(view.op, std::move(operands), std::vector<at::Tensor>{parent->meta}).front();
}

// Return an inverse by the op `name`, which writes `written` into a copy of the parent at the
// view's place.
Inverse scatter_by(const char* name) {
  return [name](const View& view, const ValuePtr& parent, const ValuePtr& written) {
    std::vector<Operand> operands(view.arguments.begin(), view.arguments.end());
    operands.front() = written;
    operands.insert(operands.begin(), parent);
    return append(name, "", std::move(operands), parent->meta);
  };
}

const std::unordered_map<c10::OperatorName, Inverse>& inverses() {
  static const std::unordered_map<c10::OperatorName, Inverse> table{
      {{"aten::diagonal", ""}, scatter_by("aten::diagonal_scatter")},
      {{"aten::permute", ""}, permute_back},
      {{"aten::select", "int"}, scatter_by("aten::select_scatter")},
      {{"aten::slice", "Tensor"}, scatter_by("aten::slice_scatter")},
      {{"aten::squeeze", ""}, reshape_back},
      {{"aten::squeeze", "dim"}, reshape_back},
      {{"aten::squeeze", "dims"}, reshape_back},
      {{"aten::t", ""}, repeat},
      {{"aten::transpose", "int"}, repeat},
      {{"aten::unsqueeze", ""}, reshape_back},
      {{"aten::view", ""}, reshape_back},
  };
  return table;
}

// Return the base, contiguous in the order of its storage.
ValuePtr in_memory_order(const Storage& storage) {
  const auto& meta = storage.value()->meta;
  return append("aten::contiguous", "", {storage.value(), c10::MemoryFormat::Contiguous},
                at::Tensor(at::detail::empty_meta(meta.sizes(), meta.scalar_type())));
}

c10::IValue list(c10::IntArrayRef numbers) {
  return numbers.vec();
}

bool determines_locations(const Storage& storage, const Geometry& geometry) {
  const auto& base = storage.base();
  return base.is_contiguous() && base.dtype == geometry.dtype && base.bytes() == storage.nbytes();
}

} // namespace

bool is_recordable_view(const c10::OperatorHandle& op) {
  return view_functions().count(op.operator_name()) != 0;
}

std::vector<at::Tensor> make_views(const c10::OperatorHandle& op, const Arguments& arguments,
                                   const std::vector<at::Tensor>& metas) {
  return view_functions().at(op.operator_name())(op, arguments, metas);
}

bool selects_part(const View& view) {
  const auto& name = view.op.operator_name().name;
  return name == "aten::select" || name == "aten::slice" ||
         (view.parent && selects_part(*view.parent));
}

ValuePtr replay(const View& view, const ValuePtr& base) {
  std::vector<Operand> operands(view.arguments.begin(), view.arguments.end());
  operands.front() = view.parent ? replay(*view.parent, base) : base;
  return append(view.op, std::move(operands), std::vector<at::Tensor>{view.meta}).front();
}

ValuePtr scatter(const View& view, const ValuePtr& base, const ValuePtr& written) {
  const auto inverse = inverses().find(view.op.operator_name());
  if (inverse == inverses().end()) return nullptr;
  const auto parent = view.parent ? replay(*view.parent, base) : base;
  auto changed = inverse->second(view, parent, written);
  return view.parent ? scatter(*view.parent, base, changed) : changed;
}

ValuePtr as_strided(const Storage& storage, const Geometry& geometry) {
  if (!storage.value()->node || !determines_locations(storage, geometry)) return nullptr;
  const auto type = at::detail::empty_meta(geometry.sizes, geometry.dtype);
  return append(
      "aten::as_strided", "",
      {in_memory_order(storage), list(geometry.sizes), list(geometry.strides), geometry.offset},
      at::Tensor(type));
}

ValuePtr as_strided_scatter(const Storage& storage, const Geometry& geometry,
                            const ValuePtr& written) {
  if (!determines_locations(storage, geometry)) return nullptr;
  const auto base = in_memory_order(storage);
  return append("aten::as_strided_scatter", "",
                {base, written, list(geometry.sizes), list(geometry.strides), geometry.offset},
                base->meta);
}

} // namespace torchmdla::acap
