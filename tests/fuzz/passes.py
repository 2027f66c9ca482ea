"""The passes of the cpu device on programs drawn at random: ``make fuzz-passes ARGS="--minutes 60"``.

A program is a few lines of PyTorch on small tensors, in families that the rules of passes are about: softmax, norms,
products, reductions, their dimensions permuted, shared, broadcast and of size 1, their values with several users. It is
imported and goes through the passes under ``TORCHMDLA_VERIFY=values``; no code is generated. What passes ask of costs
is drawn, too: the processor, the algorithm of products, and (:data:`COSTS`) sizes from which a rewrite pays.

What is found is made small by hypothesis and printed as a program.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from unittest import mock

import hypothesis
import torch
from hypothesis import strategies as st
from recording import run_and_record
from torch_mlir import ir

from torchmdla import devices
from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.lowering import loop_program
from torchmdla.devices.cpu.passes.bounds import conditions_of_bounds
from torchmdla.devices.cpu.reference import validation
from torchmdla.errors import CompileError
from torchmdla.importer import import_graph

# Features of a processor, beside those of the algorithms of products.
FEATURES = ("", "+avx2,+fma", "+avx512f,+fma", "+avx512f,+fma,+avx512bf16,+avx512vnni")
ALGORITHMS = ("fast", "fast", "fast", "direct", "winograd2", "winograd4", "strassen")

# From where on a rewrite is taken to pay, by module and name: here from small sizes on. What is computed depends on
# none of them.
COSTS: Mapping[str, Mapping[str, int]] = {
    "defer_norms": {"_LEAST_PRODUCTS": 1},
    "fold_scales": {"_LEAST_USES": 1},
    "loop_invariants": {"_LEAST_REPEATED": 1},
    "moments": {"_SHORTEST": 4, "_PARTS": 2},
    "pack_activations": {"_FEWEST_ROWS": 1},
    "pack_weights": {"_FEWEST_ROWS": 1},
    "precompute": {"_MOST_GROWTH": 100},
    "split_reduction": {"_LEAST_ELEMENTS": 4, "_FEWEST_PARTS": 2, "_MOST_PARTS": 3},
    "tile_fusion": {"_LEAST_INNERMOST": 2, "MOST_LOCAL_BYTES": 64},
}


@dataclass(frozen=True)
class Drawn:
    """A program: its lines, the shapes of its inputs ``x0``, ``x1``, …, which of them are parameters, what it returns,
    and what its passes know of the machine."""

    lines: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameters: frozenset[int]
    results: tuple[str, ...]
    features: str
    has_small_costs: bool


@st.composite
def programs(draw: st.DrawFn) -> Drawn:
    """Draws a program whose lines eager takes."""
    sizes = draw(st.lists(st.sampled_from((1, 2, 3, 4, 5, 8, 16)), min_size=2, max_size=3, unique=True))
    shape = st.lists(st.sampled_from(sizes), min_size=1, max_size=4).map(tuple)
    shapes = tuple(draw(st.lists(shape, min_size=1, max_size=4)))
    values = {f"x{k}": torch.ones(own) for k, own in enumerate(shapes)}
    lines: list[str] = []
    for _ in range(draw(st.integers(4, 9))):
        text = FAMILIES[draw(st.sampled_from(sorted(FAMILIES)))](_Source(draw, values))
        name = f"y{len(lines)}"
        made = _evaluated(text, values)
        if made is not None and made.numel() <= 1024 and made.dim() <= 5:
            values[name] = made
            lines.append(f"{name} = {text}")
    hypothesis.assume(lines)
    names = [line.split()[0] for line in lines]
    others = draw(st.lists(st.sampled_from(names), max_size=1))
    return Drawn(
        lines=tuple(lines),
        shapes=shapes,
        parameters=frozenset(draw(st.sets(st.sampled_from(range(len(shapes)))))),
        results=tuple(dict.fromkeys([names[-1], *others])),
        features=f"{draw(st.sampled_from(FEATURES))},algorithms={draw(st.sampled_from(ALGORITHMS))}",
        has_small_costs=draw(st.booleans()),
    )


def _evaluated(text: str, values: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    try:
        found = eval(text, {"torch": torch}, dict(values))
    except (RuntimeError, IndexError, ValueError):
        return None
    return found if isinstance(found, torch.Tensor) and found.numel() else None


@dataclass
class _Source:
    """What the text of a line is drawn from."""

    draw: st.DrawFn
    values: Mapping[str, torch.Tensor]

    def one(self, choices: Sequence[str]) -> str:
        return self.draw(st.sampled_from(choices))

    def operand(self) -> str:
        """A value, often one of the latest."""
        names = list(self.values)
        return self.one([*names[-2:], *names])

    def dim(self, name: str) -> int:
        rank = self.values[name].dim()
        return self.draw(st.integers(-rank, rank - 1)) if rank else 0

    def order(self, name: str) -> tuple[int, ...]:
        return tuple(self.draw(st.permutations(range(self.values[name].dim()))))

    def keep(self) -> bool:
        return self.draw(st.booleans())

    def like(self, name: str) -> str:
        """Another value that broadcasts with ``name``, or a view of one that does."""
        shape = self.values[name].shape
        fitting = [other for other, value in self.values.items() if _broadcast(shape, value.shape)]
        return self.one([*fitting, f"{name}.flip(0)", f"{name}.mT", "0.5"])


def _broadcast(left: torch.Size, right: torch.Size) -> bool:
    try:
        torch.broadcast_shapes(left, right)
    except RuntimeError:
        return False
    return True


def _factor(source: _Source, name: str) -> str:
    """What is multiplied of a value: itself, or what a rule moves behind the product."""
    dim = source.dim(name)
    return source.one(
        (
            name,
            f"torch.softmax({name}, {dim})",
            f"({name} * torch.rsqrt({name}.square().mean({dim}, keepdim=True) + 0.1))",
            f"({name} / {name}.exp().sum({dim}, keepdim=True))",
            f"({name} * {source.like(name)})",
            f"{name}.to(torch.bfloat16).float()",
        )
    )


def _einsum(source: _Source) -> str:
    """A product of two operands: dimensions of one size may be shared, and those that are may be summed."""
    left, right = source.operand(), source.operand()
    letters = "abcdefghij"
    first = letters[: source.values[left].dim()]
    rest, second = list(letters[len(first) :]), ""
    for size in source.values[right].shape:
        same = [c for c, own in zip(first, source.values[left].shape, strict=True) if own == size and c not in second]
        second += source.one([*same, rest.pop(0)])
    shared = [c for c in first if c in second]
    summed = source.draw(st.sets(st.sampled_from(shared))) if shared else set()
    kept = source.draw(st.permutations([c for c in dict.fromkeys(first + second) if c not in summed]))
    factors = f"{_factor(source, left)}, {_factor(source, right)}"
    return f'torch.einsum("{first},{second}->{"".join(kept)}", {factors})'


def _matmul(source: _Source) -> str:
    """A product of two operands that fit, or of what is permuted or reshaped until they do."""
    pairs = [
        (a, b)
        for a, left in source.values.items()
        for b, right in source.values.items()
        if left.dim() and right.dim() and left.shape[-1] == right.shape[max(-2, -right.dim())]
    ]
    if not pairs:
        name = source.operand()
        return f"{_factor(source, name)} @ {_factor(source, name)}.mT"
    left, right = source.draw(st.sampled_from(pairs))
    return f"{_factor(source, left)} @ {_factor(source, right)}"


def _reduction(source: _Source) -> str:
    name = source.operand()
    function = source.one(("sum", "mean", "amax", "amin", "logsumexp", "var"))
    return f"{name}.{function}({source.dim(name)}, keepdim={source.keep()})"


def _norm(source: _Source) -> str:
    name = source.operand()
    dim = source.dim(name)
    square = f"{name}.square()"
    return source.one(
        (
            f"{name} * torch.rsqrt({square}.mean({dim}, keepdim=True) + 0.1)",
            f"{name} / ({square}.sum({dim}, keepdim=True).sqrt() + 0.5)",
            f"({name} - {name}.mean({dim}, keepdim=True)) / ({name}.var({dim}, keepdim=True) + 0.5).sqrt()",
            f"torch.nn.functional.layer_norm({name}, {name}.shape[-1:])",
            f"torch.nn.functional.normalize({name}, dim={dim})",
        )
    )


def _view(source: _Source) -> str:
    name = source.operand()
    dim = source.dim(name)
    return source.one(
        (
            f"{name}.permute({source.order(name)})",
            f"{name}.transpose({dim}, {source.dim(name)})",
            f"{name}.unsqueeze({dim})",
            f"{name}.flatten()",
            f"{name}.flip({dim})",
            f"{name}.narrow({dim}, 0, {name}.shape[{dim}] // 2 + 1)",
            f"{name}.unsqueeze({dim}).expand({', '.join('-1' for _ in source.values[name].shape)}, 3)",
            f"torch.cat([{name}, {source.operand()}], {dim})",
            f"torch.nn.functional.pad({name}, (1, 1), value=0.5)",
            f"{name}.unfold({dim}, 2, 1)",
            f"{name}.repeat_interleave(2, {dim})",
            f"{name}.contiguous()",
        )
    )


def _elementwise(source: _Source) -> str:
    name = source.operand()
    if source.keep():
        return f"{name}.{source.one(('exp', 'relu', 'sigmoid', 'abs', 'neg', 'tanh'))}()"
    return f"{name} {source.one(('+', '-', '*', '/'))} {source.like(name)}"


def _convolution(source: _Source) -> str:
    fitting = [
        (a, b)
        for a, left in source.values.items()
        for b, right in source.values.items()
        if left.dim() == right.dim() in (3, 4) and left.shape[1] == right.shape[1]
    ]
    if not fitting:
        return _matmul(source)
    image, weight = source.draw(st.sampled_from(fitting))
    function = f"torch.nn.functional.conv{source.values[image].dim() - 2}d"
    stride, padding = source.draw(st.integers(1, 2)), source.draw(st.integers(0, 2))
    return f"{function}({image}, {weight}, stride={stride}, padding={padding})"


FAMILIES: Mapping[str, Callable[[_Source], str]] = {
    "cast": lambda s: f"{s.operand()}.to(torch.bfloat16).float()",
    "convolution": _convolution,
    "einsum": _einsum,
    "elementwise": _elementwise,
    "elementwise too": _elementwise,
    "log softmax": lambda s: (lambda name: f"torch.log_softmax({name}, {s.dim(name)})")(s.operand()),
    "matmul": _matmul,
    "norm": _norm,
    "reduction": _reduction,
    "running sum": lambda s: (lambda name: f"{name}.cumsum({s.dim(name)})")(s.operand()),
    "scale": lambda s: f"{s.operand()} * {s.one(('0.125', '3.0', '-1.5'))}",
    "softmax": lambda s: (lambda name: f"torch.softmax({name}, {s.dim(name)})")(s.operand()),
    "view": _view,
}


def check(drawn: Drawn) -> str:
    """Takes a program through the passes; returns why it was refused, if the compiler does not take it.

    Raises:
        CompileError: a pass changes what it computes, or makes what is not valid.
    """
    scope: dict[str, object] = {"torch": torch, "__name__": "drawn"}
    arguments = ", ".join(f"x{k}" for k in range(len(drawn.shapes)))
    body = "\n  ".join([*drawn.lines, f"return ({', '.join(drawn.results)},)"])
    exec(f"def function({arguments}):\n  {body}", scope)
    inputs = [torch.ones(shape) for shape in drawn.shapes]
    graph = torch.jit.trace(scope["function"], tuple(inputs), check_trace=False).graph  # type: ignore[arg-type]
    torch._C._jit_pass_lower_all_tuples(graph)
    _, record = run_and_record(graph, inputs)
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
        mock.patch.object(import_module(f"torchmdla.devices.cpu.passes.{module}"), name, value)
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
    """Checks programs until the time is over; returns how many there were, and were refused.

    Raises:
        CompileError: a pass is wrong; hypothesis has printed the smallest program that shows it.
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; returns its exit status."""
    made = argparse.ArgumentParser(prog="make fuzz-passes", description=__doc__, allow_abbrev=False)
    made.add_argument("--minutes", type=float, default=1, metavar="N", help="begin no round after N; 1")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of the first round; 0")
    options = made.parse_args(arguments)
    os.environ[validation.VARIABLE] = "values"
    for what, count in hunt(60 * options.minutes, options.seed).most_common():
        print(count, what)
    return 0


if __name__ == "__main__":
    sys.exit(main())
