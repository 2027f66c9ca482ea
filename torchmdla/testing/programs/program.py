"""A program: what is captured, and what it is called with."""

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

# "chooses": what it does depends on values, so that one run does not tell it all.
# "python": TorchScript's compiler does not take it. "random": it draws random numbers.
# "scripted": only TorchScript's compiler is asked: other captures take too long. "sparse": it makes sparse tensors.
Tag = Literal["chooses", "python", "random", "scripted", "sparse"]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: ``family.program``, unique, without spaces.
        make: makes the module or the function. It is called under a seed, once for each side of the comparison.
        inputs: the arguments of a call, in nested tuples, lists and dicts. A :class:`Draw` is drawn anew for each
            call, a tensor copied, anything else passed as it is.
        layers: how many layers that sum a result has behind it, see :func:`torchmdla.testing.compare.assert_matches`.
        mode: ``"inference"`` runs without gradients; ``"gradients"`` compares those of inputs and parameters too, by
            a weighted sum of all outputs; ``"training"`` takes steps of ``optimiser`` on what the program returns, a
            loss.
        methods: the methods of a module that are called, in this order.
        tags: what a frontend must know, see :data:`Tag`.
        optimiser: of a program in training, from its parameters.
        values: whether values are compared; otherwise only what describes them, for memory that nobody has written.
        series: the inputs of each call, where they are not the same from call to call but for the values drawn. A call
            on which eager raises is one that must raise. ``inputs`` are what capture sees.
        rewritten: what the frontend is given in place of what ``make`` makes. It computes the same values in another
        way. in_doubt: whether an element may be as far off as eager's own results are from one another when its inputs
            are rounded otherwise, and from those in float64: what a program drawn at random does to rounding errors
            no tolerance knows.
        options: arguments of :func:`torchmdla.enable` while it runs.
        environment: variables of the environment that are set meanwhile.
        errors: whether an error of a call in the series must be eager's, by class and message.
        is_refused: whether eager raises, on every call, and so must a frontend: in capture or in the call.
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
        """The first part of the name."""
        return self.name.partition(".")[0]

    @property
    def takes_tensors_only(self) -> bool:
        """Whether every input is a tensor, as tracing wants them."""
        return all(isinstance(leaf, Draw | Tensor) for leaf in tree_leaves(self.inputs))


def is_scriptable(subject: object) -> bool:
    """Whether TorchScript's compiler may take ``subject``: a module, or a function with a source of its own."""
    if isinstance(subject, nn.Module):
        return True
    return isinstance(subject, types.FunctionType) and subject.__name__ != "<lambda>" and subject.__closure__ is None


# An entry of a table: the function, or what makes the module, and the inputs.
Entry = tuple[Any, ...]


def functions(family: str, table: Mapping[str, Entry], *tags: Tag, layers: int = 1) -> Iterator[Program]:
    """Programs that call a function: name → function, inputs."""
    for name, (function, *inputs) in table.items():
        yield Program(f"{family}.{name}", constantly(function), tuple(inputs), layers, tags=frozenset(tags))


def modules(family: str, table: Mapping[str, Entry], *tags: Tag, layers: int = 1) -> Iterator[Program]:
    """Programs that call a module: name → what makes it, inputs."""
    for name, (make, *inputs) in table.items():
        yield Program(f"{family}.{name}", make, tuple(inputs), layers, tags=frozenset(tags))


def in_eval(programs: Iterator[Program]) -> Iterator[Program]:
    """The same with modules in eval mode."""
    for program in programs:
        yield replace(program, make=_evaluating(program.make))


def with_gradients(programs: Iterator[Program]) -> Iterator[Program]:
    """Each program, and once more with its gradients."""
    for program in programs:
        yield program
        yield replace(program, name=f"{program.name}:gradients", mode="gradients", layers=2 * program.layers)


def constantly(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """What makes a program of ``function``."""
    return lambda: function


def _evaluating(make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: make().eval()
