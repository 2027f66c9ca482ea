"""Program in a file, with the variants of calls that ``run`` and ``bench`` compare."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchmdla import api, devices
from torchmdla.capture import refusals
from torchmdla.cli.files import check_inputs, load_program
from torchmdla.testing.compare import assert_matches, largest_error
from torchmdla.testing.coverage import LayerCounter

Call = Callable[[], Any]


@dataclass(frozen=True)
class Subject:
    """Program in a file and the inputs of a call. Each variant loads its own copy of the program.

    Attributes:
        path: the file.
        allow_pickle: whether a pickled module may be read.
        inputs: positional arguments of the call.
        keywords: keyword arguments of the call.
        seed: the random seed of each call that is compared.
    """

    path: str
    allow_pickle: bool
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    seed: int

    @classmethod
    def of(cls, path: str, allow_pickle: bool, inputs: Sequence[Any], seed: int) -> Subject:
        """Return the subject for a file. Without ``inputs``, an exported program uses its example inputs.

        Raises:
            FileError: the file does not contain a program, or inputs are needed.
        """
        program = load_program(path, allow_pickle)
        check_inputs(program, inputs)
        arguments, keywords = program.example_inputs if api.is_exported(program) and not inputs else (inputs, {})
        return cls(path, allow_pickle, tuple(arguments), dict(keywords), seed)

    def with_batch(self, batch: int) -> Subject:
        """Return the subject with ``batch`` as the first size of each input; rows are repeated or dropped.

        Raises:
            ValueError: an input does not have rows.
        """

        def resize(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.dim():
                return tensor
            if not tensor.size(0):
                raise ValueError("an input of no rows cannot have others: the first size of each input is the batch")
            return tensor[torch.arange(batch) % tensor.size(0)]

        inputs, keywords = tree_map_only(torch.Tensor, resize, (self.inputs, dict(self.keywords)))
        return Subject(self.path, self.allow_pickle, inputs, keywords, self.seed)

    def eager(self) -> Call:
        """Return a call of the program in PyTorch alone. TorchScript's interpreter runs a TorchScript program."""
        program = load_program(self.path, self.allow_pickle)
        return self._bind(program.module() if api.is_exported(program) else program)

    def freeze(self) -> Call | None:
        """Return a call of the program after ``torch.jit.optimize_for_inference``; None if that does not support it."""
        program = load_program(self.path, self.allow_pickle)
        if api.is_exported(program) or getattr(program, "training", False):
            return None
        with torch.no_grad():
            scripted = api.as_torchscript(program, self.inputs)
            return self._bind(torch.jit.optimize_for_inference(scripted))

    def compile(self) -> Call:
        """Return a call of the program by :func:`torchmdla.compile`.

        A TorchScript program is optimised during its first calls.
        """
        program = load_program(self.path, self.allow_pickle)
        if api.is_exported(program):
            return self._bind(api.compile(program, *self.inputs, example_keywords=self.keywords))
        return self._bind(api.as_frozen_torchscript(program, self.inputs))

    def once(self, call: Call) -> Any:
        """Return a copy of the results of a call, with random numbers from the seed."""
        torch.manual_seed(self.seed)
        return tree_map_only(torch.Tensor, torch.clone, call())

    def _bind(self, program: Any) -> Call:
        # Copy the inputs, because a variant may write to them.
        inputs, keywords = tree_map_only(torch.Tensor, torch.clone, (self.inputs, dict(self.keywords)))
        return lambda: program(*inputs, **keywords)


@dataclass(frozen=True)
class Reference:
    """Result of eager PyTorch after a number of calls; ``layers`` determines the tolerance."""

    results: Any
    layers: int

    @classmethod
    def of(cls, subject: Subject, call: Call, calls: int = 1) -> Reference:
        with api.without_groups():
            with LayerCounter() as counter:
                results = subject.once(call)
            for _ in range(calls - 1):
                results = subject.once(call)
        return cls(results, max(1, counter.layers))

    def difference(self, results: Any, device: str = "cpu") -> str:
        """Return the first difference beyond the tolerance for the device's number format, or an empty string."""
        try:
            assert_matches(
                results, self.results, layers=self.layers, precision=devices.precision_of(devices.get(device))
            )
        except AssertionError as difference:
            return str(difference)
        return ""

    def error(self, results: Any) -> float | None:
        """Return the largest error, relative to the largest element.

        None if the error is not finite, or if the structures differ.
        """
        try:
            largest = largest_error(results, self.results)
        except AssertionError:
            return None
        return largest if math.isfinite(largest) else None


def warm_up(call: Call) -> int:
    """Call until PyTorch has optimised the program and no group is split any more. Return the number of calls."""
    calls = itertools.count()
    refusals.call_until_compiled(lambda: (call(), next(calls)), api.WARM_UP_CALLS)
    return next(calls)
