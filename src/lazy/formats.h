// Memory formats of lazy tensors.
#pragma once

namespace torchmdla::lazy {

// PyTorch's lazy device ignores the format that a copy is asked to be in. After this, `clone` and
// `to` with a format for channels that lie together give its strides, as a view of contiguous
// memory. To be called once, after `register_views`.
void register_formats();

} // namespace torchmdla::lazy
