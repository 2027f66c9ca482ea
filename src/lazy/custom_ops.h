// Operators of namespaces other than ATen's.
#pragma once

namespace torchmdla::lazy {

// Register interceptors for operators of other namespaces. PyTorch runs the kernel of a foreign
// operator (`torch.library.custom_op`) below functionalisation, where writes to views of its
// allocations are lost. It does the same with its own `prims`. After this call, foreign operators
// run at once on the CPU, and `prims` are decomposed into ATen operators. Call this again after
// other operators are defined.
void register_foreign_operators();

// Register interceptors again if operators were defined since the last call. This is cheap, for
// callers that are not notified of definitions.
void notice_new_operators();

} // namespace torchmdla::lazy
