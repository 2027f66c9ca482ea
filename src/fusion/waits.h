// Waits for the results of asynchronous devices, in the graph: `mdla::wait`.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace torchmdla {

// Attribute of groups whose results may be pending (runtime/pending.h).
c10::Symbol pending_attribute();

// Node kind of a wait. It returns its tensor, whose content is then in host memory.
c10::Symbol wait_symbol();

// Let the results of the groups of an asynchronous device be pending, and insert waits before the
// nodes that read them. A wait is as late as possible:
//
//   %1 = mdla::CompilationGroup[device="opencl", pending=1](%x)
//   %2, %3 = aten::sort(%x, …)                  runs meanwhile
//   %4 = mdla::wait(%1)
//   %5 = aten::cumsum(%4, …)
//
// Groups of the same device read %1 itself, and a value that only they read has no wait. The end of
// a block reads the values that the block returns.
void insert_waits(torch::jit::Block* block, c10::Symbol group_kind, const std::string& device);

} // namespace torchmdla
