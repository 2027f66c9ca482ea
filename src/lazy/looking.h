// What happens when someone looks at a value of a lazy tensor.
#pragma once

namespace torchmdla::lazy {

// PyTorch computes the tensor that someone looks at alone, and computes what it shares with others
// again for them: two results of one model would be two passes. After this all are computed at once
// that the thread has pending and that share a computation with it. To be called once.
void register_looking();

} // namespace torchmdla::lazy
