"""Dynamic programs of torch functions: traced once, recorded and imported at a typical size and at prime sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executing import Loaded
from torch import Tensor, nn

from torchmdla import devices
from torchmdla.compiler.program import Program, Sample
from torchmdla.importer import ImportedGraph, import_graph
from torchmdla.importer.interpreter import run_and_record
from torchmdla.importer.script_graph import convert_graph
from torchmdla.script.ir import Graph

# Sizes of the samples: different primes, for one symbol after the other.
PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131)
SAMPLES = 5

# Returns the inputs for values of the symbols.
Draw = Callable[..., Sequence[Tensor]]


class Function(nn.Module):
    """Module that calls a function with its inputs, then with its weights and inner modules."""

    def __init__(self, function: Callable[..., Any], *weights: Tensor | nn.Module) -> None:
        super().__init__()
        self._function = function
        for number, weight in enumerate(weights):
            value = weight if isinstance(weight, nn.Module) else nn.Parameter(weight, weight.is_floating_point())
            setattr(self, f"weight{number}", value)
        self._names = [f"weight{number}" for number in range(len(weights))]

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(*inputs, *(getattr(self, name) for name in self._names))


@dataclass(frozen=True)
class Traced:
    """Graph of a module. Its weights are inputs after the module's inputs."""

    graph: Graph
    weights: tuple[Tensor, ...]

    @classmethod
    def of(cls, module: nn.Module, inputs: Sequence[Tensor]) -> Traced:
        with torch.no_grad():
            traced = torch.jit.trace(module.eval(), tuple(inputs), check_trace=False)
            torch._C._jit_pass_inline(traced.graph)
            graph, weights = torch._C._jit_pass_lower_graph(traced.graph, traced._c)
        torch._C._jit_pass_lower_all_tuples(graph)
        torch._C._jit_pass_dce(graph)
        return cls(convert_graph(graph), tuple(weights))

    def imported(self, inputs: Sequence[Tensor]) -> tuple[ImportedGraph, list[object]]:
        """Return the program for inputs of these types and sizes, and eager's outputs."""
        everything = [*inputs, *self.weights]
        with torch.no_grad():
            outputs, record = run_and_record(self.graph, everything)
        return import_graph(self.graph, record, range(len(inputs), len(everything))), outputs


def program_of(traced: Traced, draw: Draw, typical: Sequence[int], primes: Sequence[int] = PRIMES) -> Program:
    """Return the dynamic program, sampled at ``primes``. ``draw`` returns the inputs for values of its symbols."""
    count = len(typical)
    points = [tuple(primes[k * count : (k + 1) * count]) for k in range(SAMPLES)]
    first, *others = [traced.imported(draw(*values))[0] for values in (typical, *points)]
    samples = [Sample(v, i.mlir, i.arguments, i.results) for v, i in zip(points, others, strict=True)]
    target = devices.get("cpu").target()
    return Program("", first.arguments, first.results, target, symbols=tuple(typical), samples=tuple(samples))


@dataclass(frozen=True)
class Dynamic:
    """Loaded dynamic program."""

    traced: Traced
    loaded: Loaded

    @classmethod
    def of(cls, module: nn.Module, draw: Draw, typical: Sequence[int], primes: Sequence[int] = PRIMES) -> Dynamic:
        traced = Traced.of(module, draw(*typical))
        return cls(traced, Loaded(devices.get("cpu").lower(program_of(traced, draw, typical, primes))))

    def __call__(self, values: Sequence[int], inputs: Sequence[Tensor]) -> tuple[list[object], list[object]]:
        """Return the outputs for inputs that were drawn with ``values`` of the symbols, and eager's outputs."""
        imported, expected = self.traced.imported(inputs)
        return self.loaded(imported, self.traced.graph, [*inputs, *self.traced.weights], values), expected
