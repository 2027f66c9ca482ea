"""Fuzzer of scripted modules with random control flow.

Modules have branches on attributes and on data, early returns, loops that end early, exceptions, random draws, writes
and optional values. Groups are formed but not compiled, so that thousands of modules run in minutes.

``PYTHONPATH=tests python -m fuzz.control_flow --count 10000`` compares each with the module in Python.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from rich.progress import track
from torch import nn
from torch.jit import _recursive

import torchmdla
from fuzz.text import module_of
from torchmdla.testing.checking import without_groups
from torchmdla.testing.compare import assert_matches

_CALLS = 6

HEAD = """\
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
        self.register_buffer("state", torch.zeros(3, 4))
"""

# Statements. ``{t}`` is a tensor to read, ``{v}`` a tensor to assign, ``{c}`` a condition, ``{i}`` an integer.
STATEMENTS = """\
{v} = torch.relu({t}) + {t}
{v} = {t} * 2 + {i}
{v} = torch.tanh({t} - {t})
{v} = {t} * self.weight
{v} = F.dropout({t}, 0.5, self.training)
{v} = {t} + torch.rand_like({t})
{v} = F.dropout({t}, self.rate)
{v} = {t}.clone()
{v}.add_(1)
{v}[0] = {t}[1]
{v} = {t}.t().t()
{v}.mul_({t})
parts.append({t})
{v} = torch.cat(parts)[:3] if len(parts) > 0 else {t}
{v} = {t}[:, :2].repeat(1, 2)
count += 1
count = {t}.size({i} % 2)
maybe = {t}
maybe = None
{v} = {t} + (maybe if maybe is not None else {t})
{v} = self.helper({t}, {c})
{v}, flag = self.pair({t})
flag = {c}
flag = not flag
{v} = {t} / count
self.state.add_({t}.detach())
{v} = {t} + self.state
{v} = self.inner({t})
{v} = {t} + {t}.sum().item()
""".splitlines()
CONDITIONS = """\
self.training
self.on
self.mode == 'a'
self.mode == 'b'
self.size > 2
flag
{i} > 1
k > {i}
bool({t}.sum() > 0)
float(torch.rand(1)) > 0.5
maybe is None
{t}.size(0) > 2
len(parts) > 1
self.training and float(torch.rand(1)) > 0.3
self.on or flag
not self.on and {i} > 0
count > {i}
""".splitlines()
# Statements and conditions of modules with optional arguments.
OPTIONAL_STATEMENTS = """\
{v} = {t} + (past[0] if past is not None else {t})
if past is not None: {v} = torch.cat([{t}, past[1]])[1:]
maybe = past[0] if past is not None else None
{v} = {t} * other if other is not None else {t} - 1
other = {t}
other = None
past = ({t}, {t} * 2)
if other is not None: other.add_(1)
""".splitlines()
OPTIONAL_CONDITIONS = """\
other is None
past is not None
past is None and other is not None
other is not None and {i} > 1
""".splitlines()
INTEGERS = ("0", "1", "2", "3", "k", "count", "self.size", "k + 1", "{t}.size(1)", "len(parts)")
TENSORS = ("x", "y", "z", "y", "z", "self.weight", "x + y", "(y * z)")


class Drawing:
    """Text of one module, drawn from a seed."""

    def __init__(self, seed: int, optional: bool = False) -> None:
        self._random = Random(seed)
        self._in_loop = 0
        self._arguments: list[str] = []
        self._statements, self._conditions = STATEMENTS, CONDITIONS
        if optional:
            self._arguments = ["other: Optional[Tensor] = None", "past: Optional[Tuple[Tensor, Tensor]] = None"]
            self._statements, self._conditions = STATEMENTS + OPTIONAL_STATEMENTS, CONDITIONS + OPTIONAL_CONDITIONS

    def text(self) -> str:
        """Return the source of a module with the class ``Drawn``."""
        choose = self._random.choice
        attributes = {
            "on": choose([True, False]),
            "mode": choose(["a", "b", "c"]),
            "size": choose([1, 2, 3]),
            # At rate 0, PyTorch's own derivative of dropout draws random numbers, but eager does not.
            "rate": choose([0.3, 0.5]),
        }
        lines = [f"        self.{name} = {value!r}" for name, value in attributes.items()]
        helper = self._method("helper(self, y: Tensor, flag: bool) -> Tensor", "y", 2)
        pair = self._method("pair(self, y: Tensor) -> Tuple[Tensor, bool]", "y, flag", 2)
        inner = self._method("inner(self, y: Tensor) -> Tensor", "y + z", 1)
        arguments = ", ".join(["self", "x: Tensor", "k: int", *self._arguments])
        forward = self._method(f"forward({arguments}) -> Tensor", "y + z", 7)
        return HEAD + "\n".join([*lines, *inner, *helper, *pair, *forward]) + "\n"

    def _method(self, signature: str, result: str, length: int) -> list[str]:
        self._result, self._name = result, signature.partition("(")[0]
        names = signature.partition(") ->")[0]
        first = [
            *([] if "x: Tensor" in names else ["x = y + 0"]),
            *(["y = x * 2"] if "y: Tensor" not in names else []),
            "z = y + 1",
            *([] if "k: int" in names else ["k = 2"]),
            *([] if "flag: bool" in names else ["flag = False"]),
            "count = 1",
            "parts: List[Tensor] = []",
            "maybe: Optional[Tensor] = None",
            *(argument for argument in self._arguments if argument not in names),
        ]
        body = [line for _ in range(length) for line in self._statement(3)]
        return ["", f"    def {signature}:", *(f"        {line}" for line in [*first, *body, f"return {result}"])]

    def _statement(self, depth: int) -> list[str]:
        draw = self._random.random()
        if depth and draw < 0.3:
            return self._branch(depth - 1)
        if depth and draw < 0.4:
            return self._loop(depth - 1)
        if depth < 3 and draw < 0.5:
            return [self._leave()]
        usable = [line for line in self._statements if self._may_call(line)]
        return [self._filled(self._random.choice(usable))]

    def _may_call(self, line: str) -> bool:
        """Return whether the line calls only methods that come earlier in the text."""
        order = ["inner", "helper", "pair", "forward"]
        return all(f"self.{name}(" not in line for name in order[order.index(self._name) :])

    def _branch(self, depth: int) -> list[str]:
        condition = self._filled(self._random.choice(self._conditions))
        lines = [f"if {condition}:", *self._block(depth)]
        while self._random.random() < 0.25:
            lines += [f"elif {self._filled(self._random.choice(self._conditions))}:", *self._block(depth)]
        if self._random.random() < 0.5:
            lines += ["else:", *self._block(depth)]
        return lines

    def _loop(self, depth: int) -> list[str]:
        name = f"i{depth}"
        self._in_loop += 1
        body = self._block(depth)
        self._in_loop -= 1
        if self._random.random() < 0.6:
            return [f"for {name} in range({self._random.choice(['2', '3', 'k', 'count % 4'])}):", *body]
        return [f"{name} = 0", f"while {name} < 3:", f"    {name} += 1", *body]

    def _block(self, depth: int) -> list[str]:
        return [f"    {line}" for _ in range(self._random.choice([1, 1, 2])) for line in self._statement(depth)]

    def _leave(self) -> str:
        leaves = [f"return {self._result}", f"return {self._result}", self._filled("assert {c}, 'refused'")]
        leaves.append("raise ValueError('raised')")
        if self._in_loop:
            leaves += ["break", "continue"] * 2
        return self._random.choice(leaves)

    def _filled(self, line: str) -> str:
        for place, choices in (("{c}", self._conditions), ("{i}", INTEGERS), ("{t}", TENSORS), ("{v}", ("y", "z"))):
            while place in line:
                line = line.replace(place, self._random.choice(choices), 1)
        return line


@dataclass(frozen=True)
class Outcome:
    """Outcome of a program.

    Attributes:
        status: ``right``, ``refused`` by TorchScript, ``pytorch`` if PyTorch alone differs from eager, or ``wrong``.
        reason: the error or difference.
    """

    status: str
    reason: str = ""


def run(seed: int, optional: bool = False) -> Outcome:
    """Draw the program of a seed and compare its scripted results with eager."""
    drawn = module_of(Drawing(seed, optional).text(), f"control flow {seed} {optional}").Drawn

    def new() -> nn.Module:
        # Programs that subtract large numbers amplify rounding differences. Doubles leave room for them.
        return drawn().double().train(seed % 2 == 0)

    def results(module: Any) -> list[Any]:
        return [_called(module, call, optional) for call in range(_CALLS)]

    expected = results(new())
    try:
        scripted = _scripted(new())
    except (RuntimeError, torch.jit.frontend.FrontendError) as error:
        return Outcome("refused", str(error).strip().splitlines()[0])
    difference = _difference(results(scripted), expected)
    if not difference:
        return Outcome("right")
    with without_groups():
        alone = _scripted(new())
        if _difference(results(alone), expected):
            return Outcome("pytorch", difference)
    return Outcome("wrong", difference)


def _scripted(module: nn.Module) -> Any:
    _recursive.concrete_type_store = _recursive.ConcreteTypeStore()  # PyTorch keeps plans of runs by type.
    return torch.jit.script(module)


def _called(module: Any, call: int, optional: bool) -> Any:
    """Return the result and the gradients of a call in single precision, or the error that it raises."""
    torch.manual_seed(call)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=call % 2 == 1)
    parameters = [x, *module.parameters()]
    arguments: list[Any] = [x, call % 3]
    if optional:
        arguments += [torch.ones_like(x) if call % 3 else None, (x * 2, x + 1) if call % 4 > 1 else None]
    try:
        with torch.set_grad_enabled(call % 2 == 1):
            result = module(*arguments).float()
        if not result.requires_grad:
            return result
        needed = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = torch.autograd.grad(result.sum(), needed, allow_unused=True)
        # The program does not determine autograd's strides. PyTorch's differentiable graphs replace undefined gradients
        # with zeros.
        pairs = zip(needed, gradients, strict=True)
        return result, [(torch.zeros_like(p) if grad is None else grad.contiguous()).float() for p, grad in pairs]
    except Exception as error:
        # It is not specified whether writes before or after the error in the program have happened.
        module.state.zero_()
        return error


def _difference(results: list[Any], expected: list[Any]) -> str:
    """Return the first difference, or an empty text."""
    for call, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        if isinstance(result, Exception) or isinstance(wanted, Exception):
            # A group creates a new tensor instead of writing in place, so the tensor that autograd saved is unchanged.
            if isinstance(wanted, Exception) and "modified by an inplace operation" in str(wanted):
                return ""
            if not (isinstance(result, Exception) and isinstance(wanted, Exception)):
                return f"call {call}: {result!r}, where eager has {wanted!r}"
            continue
        try:
            assert_matches(result, wanted, layers=8)
        except AssertionError as error:
            return f"call {call}: {error}"
    return ""


@contextmanager
def without_compiles() -> Iterator[None]:
    """Form groups and run them in PyTorch's interpreter."""
    torchmdla.enable(max_specialisations=0)
    try:
        yield
    finally:
        torchmdla.enable()


def hunt(seeds: range, report: Callable[[str], None], optional: bool = False) -> Counter[str]:
    """Run the programs of ``seeds`` and return the number of each status. ``report`` gets the text of each fault."""
    counts: Counter[str] = Counter()
    for seed in track(seeds, "programs", disable=not sys.stderr.isatty()):
        outcome = run(seed, optional)
        counts[outcome.status] += 1
        if outcome.status == "wrong":
            report(f"seed {seed}: {outcome.reason}")
    failed = torchmdla.stats().left_out
    for reason, count in failed.items():
        if "failed" in str(reason):
            report(f"{reason}: {count}")
    return counts


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.control_flow", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="so many programs; 1000")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed, the others follow; 0")
    parser.add_argument("--optional", action="store_true", help="programs with optional arguments")
    parser.add_argument("--show", action="store_true", help="print the first program and end")
    options = parser.parse_args()
    if options.show:
        print(Drawing(options.seed, options.optional).text())
        return 0
    warnings.simplefilter("ignore")
    with without_compiles():
        counts = hunt(range(options.seed, options.seed + options.count), print, options.optional)
    print(", ".join(f"{status} {count}" for status, count in sorted(counts.items())))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
