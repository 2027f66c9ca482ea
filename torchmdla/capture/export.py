"""Exported programs, and plain modules without TorchScript: ``torch.export`` captures, groups form in its graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from torchmdla.capture.decompositions import decompositions
from torchmdla.capture.fx import form_groups
from torchmdla.capture.options import Options
from torchmdla.capture.weights import gather_weights


def compile_module(
    module: nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any],
    dynamic_shapes: Any = None,
) -> fx.GraphModule:
    """Exports ``module`` as it is, in training or eval mode, and compiles the program.

    Args:
        inputs, keywords: the arguments of one call.
        dynamic_shapes: which sizes may vary, as in ``torch.export.export``.

    Raises:
        torch.export's exceptions: the module cannot be exported.
    """
    exported = torch.export.export(module, tuple(inputs), dict(keywords), dynamic_shapes=dynamic_shapes)
    return compile_program(exported, inputs, keywords)


def compile_program(
    program: ExportedProgram, inputs: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
) -> fx.GraphModule:
    """A module that runs ``program`` with groups, ready: the first call after this compiles nothing.

    It has the program's parameters and buffers under their names, takes and returns what the program does, and checks
    its inputs as the program does. Whether it trains was fixed by the export, so ``train()`` and ``eval()`` raise.

    Args:
        inputs, keywords: the arguments of one call; where there are none, those that the program was exported with.
    """
    # Composite operators stay whole, as devices know them; writes are taken out.
    module = program.run_decompositions(decompositions()).module()
    assert isinstance(module, fx.GraphModule)
    form_groups(module, (), Options())
    gather_weights(module)
    if not inputs and not keywords and program.example_inputs is not None:
        inputs, keywords = program.example_inputs
    with torch.no_grad(), _unchanged(module, inputs, keywords):
        module(*inputs, **(keywords or {}))
    return module


@contextmanager
def _unchanged(module: nn.Module, inputs: Any, keywords: Any) -> Iterator[None]:
    """Undoes what a call writes: a module in training updates its statistics and draws random numbers."""
    leaves = torch.utils._pytree.tree_leaves((inputs, keywords))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] + [*module.buffers()]
    before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]
    with torch.random.fork_rng(devices=[]):
        yield
    for tensor, version, value in before:
        if tensor._version != version:
            tensor.detach().copy_(value)
