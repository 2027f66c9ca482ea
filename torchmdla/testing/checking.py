"""Runs one program on one road and compares everything that can be seen of it with eager."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.programs import Program
from torchmdla.testing.programs.inputs import copied, drawn
from torchmdla.testing.roads import Captured, Variant, uncaptured

Status = Literal[
    "ok", "fallback", "not captured", "pytorch", "not compiled", "wrong", "error", "no reference", "crash", "time-out"
]

STATUSES: dict[Status, str] = {
    "ok": "everything as eager",
    "fallback": "right, but a group ran in PyTorch's interpreter",
    "not captured": "PyTorch's own capture refuses the program",
    "pytorch": "PyTorch's own capture computes something else than eager, without torchmdla too",
    "not compiled": "right, but the compiler failed on a group",
    "wrong": "values, dtypes, sizes, strides, aliasing, mutation or gradients are not eager's",
    "error": "an exception that eager does not raise",
    "no reference": "eager itself does not run it",
    "crash": "the process died",
    "time-out": "not ready in time",
}

# What may be without being listed as expected.
PASSING: frozenset[Status] = frozenset({"ok", "fallback", "not captured", "pytorch"})

# How reasons begin that say that the compiler failed, where others say that it refused. Its count of failures would
# not do: a failure is remembered, and counted once for all programs that share a group.
_FAULTS = (
    "the compiler failed",
    "the compiler process died",
    "no lowering",
    "internal error",
    "the object code",
    "compiled code calls",
)

# The profiling executor looks in the first call and optimises in the second, a differentiable graph one later; the
# next records and compiles, the last runs what was compiled.
_CALLS = {"inference": 4, "gradients": 5, "training": 6}


@dataclass(frozen=True)
class Outcome:
    """What became of a program on one way.

    Attributes:
        program, way: the names.
        status: see :data:`STATUSES`.
        detail: what is wrong and where; one line.
        fallbacks: reason → count of group calls in PyTorch's interpreter, as in ``torchmdla.stats()``.
        groups: groups that were formed; specialisations: groups compiled for given input types.
        seconds: how long it took.
        precision: the device's number format, where it has one of its own.
    """

    program: str
    way: str
    status: Status
    detail: str = ""
    fallbacks: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    specialisations: int = 0
    seconds: float = 0.0
    precision: str | None = None


def check(program: Program, way: str, variant: Variant, seed: int = 0, precision: str | None = None) -> Outcome | None:
    """The outcome of ``program`` on a way, in this process; None where the way does not take it. ``precision`` is the
    device's number format, as in :func:`torchmdla.testing.compare.assert_matches`."""
    subject = _made(program, seed)
    if not variant.takes(program, subject):
        return None
    start = perf_counter()
    torchmdla.reset_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status, detail = _compared(program, subject, variant, seed, precision)
        stats = torchmdla.stats()
        if (
            status in ("wrong", "error")
            and not variant.has_device
            and _is_pytorchs(program, variant, seed, status, precision)
        ):
            status = "pytorch" if status == "wrong" else "not captured"
    if status == "ok" and any(reason.startswith(_FAULTS) for reason in stats.fallbacks):
        status = "not compiled"
    elif status == "ok" and stats.fallbacks:
        status = "fallback"
    return Outcome(
        program.name,
        way,
        status,
        detail or "; ".join(stats.fallbacks),
        dict(stats.fallbacks),
        stats.groups,
        stats.specialisations,
        round(perf_counter() - start, 3),
        precision,
    )


def _compared(program: Program, subject: Any, variant: Variant, seed: int, precision: str | None) -> tuple[Status, str]:
    """The status as it looks from outside, and what is wrong."""
    try:
        eager = uncaptured(subject, program.inputs, program.methods)
        expected = _Run(program, eager, _state(subject), seed, variant, is_reference=True).results()
    except Exception as error:
        return "no reference", _line(error)
    try:
        made = _CapturedRun(program, variant, seed).results()
    except Exception as error:
        return "error", _line(error)
    difference = _difference(program, made, expected, variant.has_memory, precision)
    return ("wrong" if difference else "ok"), difference


def _is_pytorchs(program: Program, variant: Variant, seed: int, status: Status, precision: str | None) -> bool:
    """Whether what is wrong is PyTorch's own capture's doing: it makes the same alone."""
    with torchmdla.enabled(False):
        try:
            alone = _CapturedRun(program, replace(variant, capture=variant.alone or variant.capture), seed).results()
        except Exception:
            return status == "error"
    try:
        again = _CapturedRun(program, variant, seed).results()
        return status == "wrong" and not _difference(program, again, alone, variant.has_memory, precision)
    except Exception:
        return False


def _difference(
    program: Program, made: Sequence[Any], expected: Sequence[Any], has_memory: bool, precision: str | None
) -> str:
    """The first thing that differs, or nothing; ``has_memory``: strides and sharing of memory count."""
    for call, (ours, theirs) in enumerate(zip(made, expected, strict=True)):
        for what, wanted in theirs.items():
            if what not in ours:  # cannot be seen there
                continue
            try:
                assert_matches(
                    ours[what] if program.values else _described(ours[what], has_memory),
                    wanted if program.values else _described(wanted, has_memory),
                    layers=program.layers,
                    strides=has_memory,
                    precision=precision,
                )
            except AssertionError as error:
                return f"call {call}, {what}: {error}"
    return ""


def _described(values: Any, has_memory: bool) -> Any:
    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.dtype, leaf.shape, leaf.stride() if has_memory else None

    return tree_map(one, values)


class _Run:
    """A program's calls, and what can be seen of them."""

    def __init__(
        self,
        program: Program,
        methods: Captured,
        state: Sequence[Tensor],
        seed: int,
        variant: Variant,
        *,
        is_reference: bool = False,
    ) -> None:
        self._program = program
        self._methods = methods
        self._state = state
        self._seed = seed
        self._variant = variant
        self._device = "cpu" if is_reference else variant.device

    def results(self) -> list[dict[str, Any]]:
        """What was seen of each call, by name."""
        program = self._program
        calls = _CALLS[program.mode]
        if program.mode == "training":
            return self._training(calls)
        # What a program makes itself is to be on its device.
        default = torch.device(self._device) if self._variant.has_device else nullcontext()
        with torch.no_grad() if program.mode == "inference" else nullcontext(), default:
            return [self._call(self._seed + number) for number in range(calls)]

    def _call(self, seed: int) -> dict[str, Any]:
        given = self._drawn(seed)
        if self._program.mode == "gradients":
            given = tree_map(_requiring_grad, given)
        torch.default_generator.manual_seed(seed)
        outputs = {name: method(*given) for name, method in self._methods.items()}
        tensors = [leaf for leaf in tree_leaves((outputs, given)) if isinstance(leaf, Tensor)]
        seen: dict[str, Any] = {"outputs": outputs, "inputs afterwards": given}
        if self._variant.has_memory:
            seen["sharing"] = _sharing(tensors)
        if self._program.mode == "gradients":
            seen["gradients"] = _gradients(outputs, [*tree_leaves(given), *self._state])
        # Later calls write to parameters and buffers.
        return {**_copy_of(seen), "state": _copy_of(list(self._state))}

    def _drawn(self, seed: int) -> Any:
        with torch.device("cpu"):
            given = drawn(self._program.inputs, seed)
        if not self._variant.has_device:
            return given
        # Moving leaves neither gaps nor repeated elements. So the reference has none, either.
        given = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, given)
        return _on_device(given, self._device)

    def _training(self, steps: int) -> list[dict[str, Any]]:
        assert self._program.optimiser is not None
        optimiser = self._program.optimiser([tensor for tensor in self._state if tensor.requires_grad])
        seen = []
        for step in range(steps):
            inputs = self._drawn(self._seed + step)
            torch.default_generator.manual_seed(self._seed + step)
            optimiser.zero_grad()
            loss = self._methods["forward"](*inputs)
            loss.backward()
            gradients = _copy_of([tensor.grad for tensor in self._state])
            optimiser.step()
            seen.append(_copy_of({"loss": loss, "gradients": gradients, "state": list(self._state)}))
        return seen


class _CapturedRun(_Run):
    """The same of what a road makes of the program."""

    def __init__(self, program: Program, variant: Variant, seed: int) -> None:
        variant.prepare()
        subject = _on_device(_made(program, seed), variant.device)
        torch.default_generator.manual_seed(seed)
        # Capture may run the program: its state must not notice.
        before = [tensor.detach().clone() for tensor in _state(subject)]
        with torch.no_grad() if program.mode == "inference" else nullcontext():
            methods = variant.capture(subject, drawn(program.inputs, seed), program.methods)
        for tensor, value in zip(_state(subject), before, strict=True):
            if not torch.equal(tensor, value):
                tensor.detach().copy_(value)
        owner = methods["forward"] if variant.owns_state else subject
        super().__init__(program, methods, _state(owner), seed, variant)


def _made(program: Program, seed: int) -> Callable[..., Any]:
    torch.default_generator.manual_seed(seed)
    return program.make()


def _state(subject: Any) -> list[Tensor]:
    """Parameters and buffers, by name."""
    if not isinstance(subject, nn.Module):
        return []
    named = {**dict(subject.named_parameters()), **dict(subject.named_buffers())}
    return [named[name] for name in sorted(named)]


def _on_device(values: Any, device: str) -> Any:
    """Modules and tensors in a structure, moved; what is there already as it is."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor | nn.Module) else leaf, values)


def _requiring_grad(leaf: Any) -> Any:
    return leaf.requires_grad_() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _gradients(outputs: Any, leaves: Sequence[Any]) -> list[Tensor | None]:
    """Of a sum of all outputs with weights that differ from element to element."""
    total: Any = 0.0
    for output in tree_leaves(outputs):
        if isinstance(output, Tensor) and output.requires_grad:
            weights = torch.cos(torch.arange(output.numel(), dtype=output.dtype, device="cpu")).view(output.shape)
            wide = torch.promote_types(output.dtype, torch.float64)
            total = total + (output * weights.to(output.device)).sum().to(wide)
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf]
    return list(torch.autograd.grad(total, wanted, allow_unused=True)) if isinstance(total, Tensor) else []


def _sharing(tensors: Sequence[Tensor]) -> list[int]:
    """For each tensor the first one in whose memory it lies."""
    first: dict[int, int] = {}
    return [
        first.setdefault(tensor.untyped_storage().data_ptr(), index)
        for index, tensor in enumerate(tensors)
        if tensor.layout == torch.strided and tensor.numel()
    ]


def _copy_of(values: Any) -> Any:
    """The same structure with tensors that no later call writes to; strides, and whether gradients flow, are kept."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return copy.copy(leaf)
        with torch.no_grad(), torch.device("cpu"):
            kept = copied(leaf) if leaf.device.type == "cpu" else _laid_out(leaf.cpu(), leaf.stride())
            return kept.requires_grad_(leaf.requires_grad)

    return tree_map(one, values)


def _laid_out(values: Tensor, strides: Sequence[int]) -> Tensor:
    """The same values with ``strides``, which may have gaps or repeat elements."""
    made = torch.empty_strided(values.shape, strides, dtype=values.dtype)
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in strides)
    made[once].copy_(values[once])
    return made


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TorchScript's interpreter puts the message last, below a traceback of the script.
    text = (lines[-1] if lines and "TorchScript interpreter" in lines[0] else lines[0]) if lines else ""
    return f"{type(error).__name__}: {text}"[:500]
