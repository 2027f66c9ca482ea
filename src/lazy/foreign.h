// Operators that are not PyTorch's own.
#pragma once

namespace torchmdla::lazy {

// PyTorch runs the kernel of an operator of somebody else (`torch.library.custom_op`) below
// functionalisation, where writes to views of what it allocates are lost. After this, such an
// operator is called at once, on the CPU. To be called again where others were defined since.
void register_foreign_operators();

// Does that if operators were defined since: cheap, for whoever is not told of definitions.
void notice_new_operators();

} // namespace torchmdla::lazy
