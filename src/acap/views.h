// Views as ops in a graph: how they are taken, read again after a write, and written through.
#pragma once

#include "tensor.h"

namespace torchmdla::acap {

// Ops that take views and that a graph can express. They are kernels of the dispatcher: a view of
// `self`, the first argument, for each result.
bool is_recordable_view(const c10::OperatorHandle& op);

// The views that `op` takes of `arguments[0]`, given the `metas` that it takes of a meta tensor of
// the same geometry.
std::vector<at::Tensor> take_views(const c10::OperatorHandle& op,
                                   const std::vector<c10::IValue>& arguments,
                                   const std::vector<at::Tensor>& metas);

// What follows needs graph_mutex().

// The view's value, `base` being that of its storage.
ValuePtr replay(const View& view, const ValuePtr& base);

// The base's value after `written` was written to the view; null where no op expresses it.
ValuePtr scatter(const View& view, const ValuePtr& base, const ValuePtr& written);

// The same for a view of which only the geometry is known; null where the storage's base does not
// tell what lies where, or is at hand, which needs no graph.
ValuePtr as_strided(const Storage& storage, const Geometry& geometry);
ValuePtr as_strided_scatter(const Storage& storage, const Geometry& geometry,
                            const ValuePtr& written);

} // namespace torchmdla::acap
