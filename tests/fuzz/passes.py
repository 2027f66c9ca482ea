"""Fuzzer of the cpu device's passes on random programs: ``make fuzz-passes ARGS="--minutes 60"``.

A program is a few lines of PyTorch on small tensors, in the families that the rules of passes are for
(:mod:`fuzz.families`). It is imported and goes through the passes with ``TORCHMDLA_VERIFY=values``. No code is
generated. The inputs of cost models are random, too: the processor, the algorithm of products, and (:data:`COSTS`) the
least sizes of rewrites. The last line of output has the number of programs that each pass changed.

Hypothesis reduces a program that fails, and prints it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from unittest import mock

import hypothesis
import torch
from hypothesis import strategies as st
from torch_mlir import ir

from fuzz import families
from torchmdla import devices
from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.lowering import loop_program
from torchmdla.devices.cpu.passes import pipeline
from torchmdla.devices.cpu.passes.bounds import conditions_of_bounds
from torchmdla.devices.cpu.reference import validation
from torchmdla.errors import CompileError
from torchmdla.importer import import_graph
from torchmdla.importer.interpreter import run_and_record
from torchmdla.importer.script_graph import convert_graph

# Features of a processor, without those of the algorithms of products.
FEATURES = ("", "+avx2,+fma", "+avx512f,+fma", "+avx512f,+fma,+avx512bf16,+avx512vnni", "+avx2,matrix-unit=software")
ALGORITHMS = ("fast", "fast", "direct", "winograd2", "winograd4", "strassen", "strassen")

# Constants of cost models by module and name. With these values, rewrites already apply to small sizes. Results do not
# depend on these constants.
COSTS: Mapping[str, Mapping[str, object]] = {
    # With this small cache, weights count as read from memory, and are read in few bits.
    "target.machine": {"_parse_measured": lambda text: {"second_level": 32, "memory_bytes": 1.0}},
    "passes.defer_factors": {"_LEAST_PRODUCTS": 1},
    "passes.fold_scales": {"_LEAST_USES": 1},
    "passes.loop_invariants": {"_LEAST_REPEATED": 1},
    "passes.moments": {"_SHORTEST": 4, "_PARTS": 2},
    # A copy to panels seems to save time.
    "passes.packing": {
        "_FEWEST_ROWS_TO_TRANSPOSE": 1,
        "_FEWEST_ROWS_IN_REGISTERS": 1,
        "_cycles": lambda nests, machine, typical: -len(nests),
    },
    "passes.precompute": {"_MOST_GROWTH": 100},
    "passes.split_reduction": {"_LEAST_ELEMENTS": 4, "_FEWEST_PARTS": 2, "_MOST_PARTS": 3},
    "passes.tile_fusion": {"_LEAST_INNERMOST": 2, "MOST_LOCAL_BYTES": 64},
}


@dataclass(frozen=True)
class Drawn:
    """Random program.

    Attributes:
        lines: its statements.
        inputs: the kinds and sizes of its inputs ``x0``, ``x1``, ….
        parameters: the indices of inputs that are parameters.
        results: the names that it returns.
        features: the processor and the algorithms of products for the passes.
        has_small_costs: whether :data:`COSTS` apply.
    """

    lines: tuple[str, ...]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    parameters: frozenset[int]
    results: tuple[str, ...]
    features: str
    has_small_costs: bool


@st.composite
def programs(draw: st.DrawFn) -> Drawn:
    """Draw a program whose lines run in eager."""
    sizes = draw(st.lists(st.sampled_from((1, 2, 3, 4, 5, 8, 16)), min_size=2, max_size=3, unique=True))
    shape = st.lists(st.sampled_from(sizes), min_size=1, max_size=4).map(tuple)
    source = _Source(draw, [("float32", lengths) for lengths in draw(st.lists(shape, min_size=1, max_size=4))])
    parameters = draw(st.sets(st.sampled_from(range(len(source.inputs)))))
    first = len(source.inputs)
    for _ in range(draw(st.integers(3, 8))):
        source.add_line()
    hypothesis.assume(source.lines)
    names = [line.split()[0] for line in source.lines]
    unused = [name for k, name in enumerate(names) if not re.search(rf"\b{name}\b", "\n".join(source.lines[k + 1 :]))]
    others = draw(st.lists(st.sampled_from(names), max_size=1))
    parameters |= set(range(first, len(source.inputs))) if draw(st.booleans()) else set()
    return Drawn(
        lines=tuple(source.lines),
        inputs=tuple(source.inputs),
        parameters=frozenset(parameters),
        results=tuple(dict.fromkeys([*unused, *others])),
        features=f"{draw(st.sampled_from(FEATURES))},algorithms={draw(st.sampled_from(ALGORITHMS))}",
        has_small_costs=draw(st.booleans()),
    )


class _Source(families.Source):
    """Source of lines while they are drawn, with their inputs and their values."""

    def __init__(self, draw: st.DrawFn, inputs: list[tuple[str, tuple[int, ...]]]) -> None:
        self._draw, self.inputs, self.lines = draw, inputs, list[str]()
        self._values = {f"x{k}": _example(*spec) for k, spec in enumerate(inputs)}

    def number(self, least: int, most: int) -> int:
        return self._draw(st.integers(least, most))

    def operands(self) -> Sequence[families.Operand]:
        return [
            families.Operand(name, tuple(map(str, value.shape)))
            for name, value in self._values.items()
            if value.dtype == torch.float32
        ]

    def parameter(self, kind: str, *sizes: str) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append((kind, tuple(map(int, sizes))))
        self._values[name] = _example(*self.inputs[-1])
        return name

    def add_line(self) -> None:
        """Draw a line, and append it if it runs in eager and its result is small."""
        count, values = len(self.inputs), dict(self._values)
        try:
            text = families.draw(self)
            result = eval(text, {"torch": torch}, dict(self._values))
        except (families.NothingFits, RuntimeError, IndexError, ValueError):
            result = None
        if isinstance(result, torch.Tensor) and 0 < result.numel() <= 1024 and result.dim() <= 5:
            self._values[f"y{len(self.lines)}"] = result
            self.lines.append(f"y{len(self.lines)} = {text}")
        else:
            del self.inputs[count:]
            self._values = values


# The least integers of each kind, so that the examples fit in the number of bits.
_LEAST = {"int8": -128, "int4": -8}


def _example(kind: str, sizes: tuple[int, ...]) -> torch.Tensor:
    return torch.full(sizes, _LEAST[kind], dtype=torch.int8) if kind in _LEAST else torch.ones(sizes)


def check(drawn: Drawn) -> str:
    """Run the passes on a program. Return the reason if the compiler does not support it, else an empty text.

    Raises:
        CompileError: If a pass changes the results, or returns an invalid program.
    """
    scope: dict[str, object] = {"torch": torch, "__name__": "drawn"}
    arguments = ", ".join(f"x{k}" for k in range(len(drawn.inputs)))
    body = "\n  ".join([*drawn.lines, f"return ({', '.join(drawn.results)},)"])
    exec(f"def function({arguments}):\n  {body}", scope)
    inputs = [_example(*spec) for spec in drawn.inputs]
    graph = torch.jit.trace(scope["function"], tuple(inputs), check_trace=False).graph  # type: ignore[arg-type]
    torch._C._jit_pass_lower_all_tuples(graph)
    graph = convert_graph(graph)
    _, record = run_and_record(graph, inputs)
    for value, (kind, _) in zip(graph.inputs, drawn.inputs, strict=True):
        if kind == "int4":
            record[value.name] = replace(record[value.name], bits=4)  # type: ignore[type-var]
    target = replace(devices.get("cpu").target(), features=drawn.features)
    try:
        imported = import_graph(graph, record, drawn.parameters)
        program = Program(imported.mlir, imported.arguments, imported.results, target)
        with new_context(), ir.Location.unknown(), costs(drawn.has_small_costs):
            steps, _ = loop_program(program, {})
            conditions_of_bounds(steps)
    except CompileError as error:
        if "internal error" in str(error):
            raise
        return str(error).splitlines()[0]
    return ""


@contextmanager
def costs(are_small: bool) -> Iterator[None]:
    patches = [
        mock.patch.object(import_module(f"torchmdla.devices.cpu.{module}"), name, value)
        for module, numbers in COSTS.items()
        for name, value in numbers.items()
    ]
    for patch in patches if are_small else []:
        patch.start()
    try:
        yield
    finally:
        for patch in patches if are_small else []:
            patch.stop()


SETTINGS = hypothesis.settings(
    max_examples=200, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)


def hunt(seconds: float, seed: int) -> Counter[str]:
    """Check programs until the time is over. Return the number of programs, and of refusals by reason.

    Raises:
        CompileError: If a pass is wrong. Hypothesis has printed the smallest program that shows it.
    """
    end, seen = time.monotonic() + seconds, Counter[str]()

    @SETTINGS
    @hypothesis.given(programs())
    def each(drawn: Drawn) -> None:
        refusal = check(drawn)
        seen["programs"] += 1
        if refusal:
            seen[f"refused: {refusal}"] += 1

    while time.monotonic() < end:
        hypothesis.seed(seed)(each)()
        seed += 1
    return seen


def changes(counts: str) -> dict[str, int]:
    """Return how often each pass has changed a program, from the file of counts."""
    lines = Counter(line.strip() for line in Path(counts).read_text(encoding="utf-8").splitlines())
    return {entry.name: lines[f"checked {entry.name}"] for entry in pipeline.PASSES}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="make fuzz-passes", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=1, metavar="N", help="begin no round after N; 1")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of the first round; 0")
    options = parser.parse_args(arguments)
    os.environ[validation.VARIABLE] = "values"
    with tempfile.NamedTemporaryFile(suffix=".counts") as file:
        os.environ[validation.COUNTS] = file.name
        seen = hunt(60 * options.minutes, options.seed)
        changed = changes(file.name)
    for what, count in seen.most_common():
        print(count, what)
    print("changed by", ", ".join(f"{name}: {count}" for name, count in changed.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
