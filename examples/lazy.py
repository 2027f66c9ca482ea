"""Compute with tensors of PyTorch's device ``lazy``, which are computed when they are read, or at the end of a step."""

import torch
import torch._lazy

from torchmdla import lazy

lazy.initialize()
x = torch.tensor([[1, 2, 3, 4, 5]], dtype=torch.float32, device="lazy")
y = torch.tanh(x)
torch._lazy.mark_step()
print(y)
print(lazy.get_latest_computation().debug_string())  # JIT graph, MLIR, input/output aliases, whether in mark_step
