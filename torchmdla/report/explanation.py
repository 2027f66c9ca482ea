"""What :func:`torchmdla.explain` returns, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Peak:
    """What this machine reaches, measured with as many threads as PyTorch uses: ``gflops`` by a product of float32
    matrices (GFLOP/s), ``gigabytes`` by a copy in memory, read and written (GB/s)."""

    threads: int
    gflops: float
    gigabytes: float


@dataclass(frozen=True)
class Kernel:
    """A place in a group's code that runs a kernel.

    Attributes:
        symbol: its name in the code; equal kernels share one.
        ops: the operators that it computes, without namespaces.
        source: the line of the first of them (``file:line``); empty when unknown.
        loops: the sizes of its loop nests, as ``64x56x56 reduce 576``.
        flops: floating-point operations in a call of the group.
        bytes: read and written in a call, each element once.
        seconds: of a call of the group, the least.
        share: of the model's time.
    """

    symbol: str
    ops: tuple[str, ...]
    source: str
    loops: str
    flops: int
    bytes: int
    seconds: float
    share: float

    @property
    def gflops(self) -> float:
        """GFLOP/s; 0 where no time was measured."""
        return self.flops / self.seconds * 1e-9 if self.seconds else 0.0

    @property
    def gigabytes(self) -> float:
        """GB/s; 0 where no time was measured."""
        return self.bytes / self.seconds * 1e-9 if self.seconds else 0.0


@dataclass(frozen=True)
class Specialisation:
    """A group compiled for the types of its inputs, or what kept it from that.

    Attributes:
        inputs: their types, ``x: float32[1, 3, 224, 224]``; weights are left out.
        is_dynamic: for any sizes; those of ``inputs`` are the typical ones.
        cause: what it was compiled for beside the earlier ones: which size, which dtype.
        origin: where its code came from: ``"compiled"``, ``"disk"`` or ``"memory"``; empty where there is none.
        seconds: what compiling it, or finding it, took.
        packed_bytes: of weights, in the order in which its kernels read them.
        workspace_bytes: of intermediate results; of a dynamic one only of what packs need.
        failure: why there is no code, or which operators it leaves out; empty if nothing is.
        kernels: of the code, in order. Those of code that ran have times.
    """

    inputs: tuple[str, ...]
    is_dynamic: bool
    cause: str
    origin: str
    seconds: float
    packed_bytes: int
    workspace_bytes: int
    failure: str
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Group:
    """A group that the model's calls went through.

    Attributes:
        name: in PyTorch's profiles.
        ops: operator → how many of them it has.
        source: the line of its first operator (``file:line``); empty when unknown.
        compiled_calls: since it was made. ``recorded_calls`` were run by eager operators, to be compiled,
            ``training_calls`` as PyTorch runs a program that trains, because backward was expected.
        fallbacks: reason → number of calls in PyTorch's interpreter.
        not_dynamic: reason → number of attempts to compile it for any sizes.
        seconds: in its code in a call of the model, the least. ``share`` of the model's time.
    """

    name: str
    device: str
    ops: dict[str, int]
    source: str
    compiled_calls: int
    recorded_calls: int
    training_calls: int
    fallbacks: dict[str, int]
    not_dynamic: dict[str, int]
    specialisations: tuple[Specialisation, ...]
    seconds: float
    share: float


@dataclass(frozen=True)
class Outside:
    """An operator that ran outside of compiled groups: ``calls`` in a call of the model, which took ``seconds``
    together, ``share`` of all the operators' time when they are profiled."""

    op: str
    calls: int
    seconds: float
    share: float


@dataclass(frozen=True)
class Reason:
    """Why something does not run compiled, or not for any sizes.

    Attributes:
        kind: ``"operator"`` outside of groups, ``"left out"`` of a group that could not be compiled with it, ``"not
            compiled"``, the group, because of it, ``"call"`` of a group that ran in PyTorch's interpreter, ``"sizes"``
            that make other specialisations.
        op: the operator (``aten::nonzero``); empty for calls and sizes.
        count: graphs that have the operator outside, specialisations without it, calls, or attempts.
        sources: the lines of the user's program, ``file:line``.
        advice: what to do about it.
    """

    kind: str
    op: str
    reason: str
    count: int
    sources: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        return f"{self.op}: {self.reason}" if self.op else self.reason


@dataclass(frozen=True)
class OpError:
    """How far the result of an operator is from eager's.

    Attributes:
        error: the largest, relative to the largest element of the result; None where one is infinite or NaN and the
            other is not.
        difference: what is beyond the tolerance (:mod:`torchmdla.testing.compare`); empty if nothing is.
    """

    op: str
    source: str
    group: str
    error: float | None
    difference: str


@dataclass(frozen=True)
class Explanation:
    """What torchmdla makes of a model and a call, and how long that takes.

    ``print`` shows it as tables; notebooks show it too.

    Attributes:
        groups: those that the call went through, in the order in which they were formed.
        outside: operators outside of compiled groups, the slowest first.
        reasons: each once, those that cost most first.
        ops_compiled: operators of one call that ran in compiled groups, ``ops`` of all.
        seconds: of a call of the model, the least; ``seconds_compiled`` in compiled code.
        calls: that were timed.
        peak: of the machine.
        errors: of every operator in groups against eager, where that was asked for; None otherwise.
    """

    groups: tuple[Group, ...]
    outside: tuple[Outside, ...]
    reasons: tuple[Reason, ...]
    ops_compiled: int
    ops: int
    seconds: float
    seconds_compiled: float
    calls: int
    peak: Peak
    errors: tuple[OpError, ...] | None = None

    @property
    def first_difference(self) -> OpError | None:
        """The first operator whose result differs from eager's beyond the tolerance."""
        return next((error for error in self.errors or () if error.difference), None)

    @property
    def summary(self) -> str:
        """All in one line."""
        compiled = [group for group in self.groups if group.seconds]
        text = f"{len(compiled)} group{'' if len(compiled) == 1 else 's'}"
        text += f", {_percent(self.ops_compiled, self.ops)} of ops and"
        text += f" {_percent(self.seconds_compiled, self.seconds)} of time compiled"
        costly = [str(reason) for reason in self.reasons if reason.kind != "sizes"][:3]
        return f"{text}; top reasons for the rest: {'; '.join(costly)}" if costly else text

    def to_dict(self) -> dict[str, Any]:
        """Dictionaries, lists, strings and numbers."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {"summary": self.summary, **plain}

    def to_json(self, indent: int | None = None) -> str:
        """:meth:`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        from torchmdla.report.rendering import as_text, tables

        return as_text(tables(self))

    def _repr_html_(self) -> str:
        from torchmdla.report.rendering import as_html, tables

        return as_html(tables(self))


def _percent(part: float, whole: float) -> str:
    """Rounded down, so that 100 % is all."""
    return f"{int(part / whole * 1000) / 10:g} %" if whole else "0 %"
