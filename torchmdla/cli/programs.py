"""A program in a file, ready to be called in the ways that ``run`` and ``bench`` compare."""

from __future__ import annotations

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
    """A program in a file and the inputs of a call. Each way to run it has a program of its own.

    Attributes:
        seed: of each call that is compared.
    """

    path: str
    allow_pickle: bool
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    seed: int

    @classmethod
    def of(cls, path: str, allow_pickle: bool, inputs: Sequence[Any], seed: int) -> Subject:
        """An exported program's own inputs are taken where none are given.

        Raises:
            FileError: the file holds no program, or inputs are needed.
        """
        program = load_program(path, allow_pickle)
        check_inputs(program, inputs)
        given, keywords = program.example_inputs if api.is_exported(program) and not inputs else (inputs, {})
        return cls(path, allow_pickle, tuple(given), dict(keywords), seed)

    def with_batch(self, batch: int) -> Subject:
        """The same with ``batch`` as the first size of each input, whose rows are repeated, or left out.

        Raises:
            ValueError: an input has no rows.
        """

        def resized(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.dim():
                return tensor
            if not tensor.size(0):
                raise ValueError("an input of no rows cannot have others: the first size of each input is the batch")
            return tensor[torch.arange(batch) % tensor.size(0)]

        inputs, keywords = tree_map_only(torch.Tensor, resized, (self.inputs, dict(self.keywords)))
        return Subject(self.path, self.allow_pickle, inputs, keywords, self.seed)

    def eager(self) -> Call:
        """The program as PyTorch alone runs it; one of TorchScript in its interpreter."""
        program = self._load()
        return self._bound(program.module() if api.is_exported(program) else program)

    def frozen(self) -> Call | None:
        """``torch.jit.optimize_for_inference`` of it; None where that does not take it."""
        program = self._load()
        if api.is_exported(program) or getattr(program, "training", False):
            return None
        with torch.no_grad():
            scripted = api.as_torchscript(program, self.inputs)
            return self._bound(torch.jit.optimize_for_inference(scripted))

    def compiled(self) -> Call:
        """The program as :func:`torchmdla.compile` has it, before the calls that optimise one of TorchScript."""
        program = self._load()
        if api.is_exported(program):
            return self._bound(api.compile(program, *self.inputs, example_keywords=self.keywords))
        return self._bound(api.ready(program, self.inputs))

    def once(self, call: Call) -> Any:
        """The results of a call, as they are now, with random numbers from the seed."""
        torch.manual_seed(self.seed)
        return tree_map_only(torch.Tensor, torch.clone, call())

    def _load(self) -> Any:
        return load_program(self.path, self.allow_pickle)

    def _bound(self, program: Any) -> Call:
        # The ways do not see what others write to their inputs.
        inputs, keywords = tree_map_only(torch.Tensor, torch.clone, (self.inputs, dict(self.keywords)))
        return lambda: program(*inputs, **keywords)


@dataclass(frozen=True)
class Reference:
    """What eager PyTorch returns after so many calls; ``layers`` decide on the tolerance."""

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
        """What differs beyond the tolerance for the device's number format; empty if nothing does."""
        try:
            assert_matches(results, self.results, layers=self.layers, precision=devices.get(device).precision)
        except AssertionError as difference:
            return str(difference)
        return ""

    def error(self, results: Any) -> float | None:
        """The largest, relative to the largest element; None where it is not finite, or the structures differ."""
        try:
            found = largest_error(results, self.results)
        except AssertionError:
            return None
        return found if math.isfinite(found) else None


def warm_up(call: Call) -> int:
    """Calls until PyTorch has optimised it, and no group is divided any more; returns how often."""
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        call()

    refusals.call_until_whole(counted, api.WARM_UP_CALLS)
    return calls
