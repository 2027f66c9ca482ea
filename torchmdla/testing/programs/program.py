"""Definition of a program: the function or module to capture, and its inputs."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from torchmdla.testing.programs.inputs import Draw

Mode = Literal["inference", "gradients", "training"]

# "chooses": control flow depends on values, so that one run does not cover the program.
# "python": TorchScript's compiler does not support it. "random": it draws random numbers.
# "scripted": only TorchScript captures it, because other captures take too long. "sparse": it makes sparse tensors.
Tag = Literal["chooses", "python", "random", "scripted", "sparse"]


@dataclass(frozen=True)
class Program:
    """Test program.

    Attributes:
        name: ``family.program``, unique, without spaces.
        make: makes the module or the function. It is called under a seed, once for each side of the comparison.
        inputs: the arguments of a call, in nested tuples, lists and dicts. A :class:`Draw` is drawn for each call,
            a tensor is copied, other values are passed unchanged.
        layers: the number of chained layers that sum, see :func:`torchmdla.testing.compare.assert_matches`.
        mode: ``"inference"`` runs without gradients. ``"gradients"`` also compares the gradients of inputs and
            parameters, of a weighted sum of all outputs. ``"training"`` runs steps of ``optimiser`` on the loss that
            the program returns.
        methods: the methods of a module that are called, in this order.
        tags: properties that a frontend must know, see :data:`Tag`.
        optimiser: makes the optimiser of a program in training, from its parameters.
        values: whether values are compared; otherwise only dtypes, sizes and strides, for uninitialised memory.
        series: the inputs of each call, if calls differ in more than the drawn values. If eager raises on a call, the
            frontend must raise, too. Capture uses ``inputs``.
        rewritten: makes the program that the frontend receives instead of the result of ``make``. It computes the same
            values differently.
        in_doubt: whether an element may differ as much as eager's own results with inputs rounded differently, or in
            float64. No fixed tolerance fits the rounding errors of a randomly generated program.
        options: arguments of :func:`torchmdla.enable` while it runs.
        environment: environment variables that are set while it runs.
        errors: whether an error of a call in the series must be eager's, by class and message.
        is_refused: whether eager raises on every call, so that a frontend must raise, too, in capture or in the call.
    """

    name: str
    make: Callable[[], Callable[..., Any]]
    inputs: tuple[Any, ...]
    layers: int = 1
    mode: Mode = "inference"
    methods: tuple[str, ...] = ("forward",)
    tags: frozenset[Tag] = frozenset()
    optimiser: Callable[[list[Tensor]], torch.optim.Optimizer] | None = None
    values: bool = True
    series: tuple[tuple[Any, ...], ...] = ()
    rewritten: Callable[[], Callable[..., Any]] | None = None
    in_doubt: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    errors: bool = False
    is_refused: bool = False

    @property
    def family(self) -> str:
        """Return the first part of the name."""
        return self.name.partition(".")[0]

    @property
    def takes_tensors_only(self) -> bool:
        """Return whether every input is a tensor, as tracing requires."""
        return all(isinstance(leaf, Draw | Tensor) for leaf in tree_leaves(self.inputs))


def is_scriptable(subject: object) -> bool:
    """Return whether TorchScript's compiler may support ``subject``: a module, or a function with its own source."""
    if isinstance(subject, nn.Module):
        return True
    return isinstance(subject, types.FunctionType) and subject.__name__ != "<lambda>" and subject.__closure__ is None


# An entry of a table: the function, or the factory of the module, and the inputs.
Entry = tuple[Any, ...]


def functions(family: str, table: Mapping[str, Entry], *tags: Tag, layers: int = 1) -> Iterator[Program]:
    """Yield programs that call a function; ``table``: name → function, inputs."""
    for name, (function, *inputs) in table.items():
        yield Program(f"{family}.{name}", factory_of(function), tuple(inputs), layers, tags=frozenset(tags))


def modules(family: str, table: Mapping[str, Entry], *tags: Tag, layers: int = 1) -> Iterator[Program]:
    """Yield programs that call a module; ``table``: name → factory of the module, inputs."""
    for name, (make, *inputs) in table.items():
        yield Program(f"{family}.{name}", make, tuple(inputs), layers, tags=frozenset(tags))


def in_eval(programs: Iterator[Program]) -> Iterator[Program]:
    """Yield the programs with their modules in eval mode."""
    for program in programs:
        yield replace(program, make=_make_in_eval(program.make))


def with_gradients(programs: Iterator[Program]) -> Iterator[Program]:
    """Yield each program twice: as it is, and with gradients."""
    for program in programs:
        yield program
        yield replace(program, name=f"{program.name}:gradients", mode="gradients", layers=2 * program.layers)


def factory_of(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """Return a factory that returns ``function``, for :attr:`Program.make`."""
    return lambda: function


def _make_in_eval(make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: make().eval()
