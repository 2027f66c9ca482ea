"""Models exported for the runtime without libtorch, and eager's results for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchmdla
import torchmdla_runtime
from torchmdla.testing.compare import assert_matches


@dataclass(frozen=True)
class Exported:
    """Model's file, and the model."""

    path: Path
    module: nn.Module
    inputs: tuple[Tensor, ...]
    layers: int = 1

    def load(self, threads: int = 1) -> torchmdla_runtime.Model:
        return torchmdla_runtime.Model(self.path, threads)

    def expected(self, inputs: Sequence[Tensor] | None = None) -> list[Tensor]:
        return flattened(eager(self.module, self.inputs if inputs is None else inputs))

    def check(self, model: torchmdla_runtime.Model, inputs: Sequence[Tensor] | None = None) -> None:
        """Call the model and compare its results with eager's."""
        arguments = self.inputs if inputs is None else inputs
        assert_matches(tensors(model(*arguments)), self.expected(arguments), layers=self.layers, strides=False)


def export(module: nn.Module, inputs: Any, path: Path, layers: int = 1, target: str = "native") -> Exported:
    """Export a module. ``inputs`` are those of a call, or a list of the inputs of several calls."""
    module = module.eval()
    torchmdla.export_native(module, inputs, path, target)
    return Exported(path, module, inputs[0] if isinstance(inputs, list) else inputs, layers)


def eager(module: nn.Module, inputs: Sequence[Tensor]) -> Any:
    with torch.no_grad(), torchmdla.enabled(False):
        return module(*inputs)


def tensors(arrays: Sequence[Any]) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def flattened(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return [tensor for result in results for tensor in flattened(result)]
