// Operators of other namespaces than ATen's.
#pragma once

namespace torchmdla::lazy {

// PyTorch runs the kernel of an operator of somebody else (`torch.library.custom_op`) below
// functionalisation, where writes to views of what it allocates are lost, and so it does with its
// own `prims`. After this, the first is called at once, on the CPU, and the second taken apart into
// the operators of ATen that it calls. To be called again where others were defined since.
void register_foreign_operators();

// Does that if operators were defined since: cheap, for whoever is not told of definitions.
void notice_new_operators();

} // namespace torchmdla::lazy
