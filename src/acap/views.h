// Views as ops in a graph: creation, reading after a write, and writing through.
#pragma once

#include "tensor.h"

namespace torchmdla::acap {

// Return whether `op` takes views that a graph can express. Such ops are kernels of the dispatcher.
// Each result is a view of `self`, the first argument.
bool is_recordable_view(const c10::OperatorHandle& op);

// Return the views that `op` takes of `arguments[0]`. `metas` are its results for a meta tensor of
// the same geometry.
std::vector<at::Tensor> make_views(const c10::OperatorHandle& op,
                                   const std::vector<c10::IValue>& arguments,
                                   const std::vector<at::Tensor>& metas);

// Return whether the view, or one that it is of, has only some indices of a dimension.
bool selects_part(const View& view);

// The functions below require graph_mutex().

// Return the value of the view, given the value `base` of its storage.
ValuePtr replay(const View& view, const ValuePtr& base);

// Return the value of the base after `written` is written to the view, or null if ops cannot
// express it.
ValuePtr scatter(const View& view, const ValuePtr& base, const ValuePtr& written);

// Do the same for a view of which only the geometry is known. Return null if the base does not
// determine the places of elements. `as_strided` also returns null if the base is computed, which
// needs no graph.
ValuePtr as_strided(const Storage& storage, const Geometry& geometry);
ValuePtr as_strided_scatter(const Storage& storage, const Geometry& geometry,
                            const ValuePtr& written);

} // namespace torchmdla::acap
