"""What :func:`torchmdla.explain` returns, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torchmdla.compiler.artifact import KernelCall


@dataclass(frozen=True)
class Peak:
    """What this machine reaches, measured with as many threads as PyTorch uses: ``gflops`` by fused multiply-adds of
    float32 in registers (GFLOP/s), ``gigabytes`` by a copy in memory, read and written (GB/s)."""

    threads: int
    gflops: float
    gigabytes: float


@dataclass(frozen=True)
class Operator:
    """A place in a graph that runs an operator or a compiled group.

    Attributes:
        op: the operator (``aten::conv2d``); of a group its name.
        source: its line (``file:line``); empty when unknown.
        inputs: whose results it takes: the number of the operator in the graph, -1 for the graph's own inputs, and the
            number of the result.
        seconds: in a call of the model; 0 inside of groups, where kernels have times.
        group: the name of the group that it runs; empty for an operator.
    """

    op: str
    source: str
    inputs: tuple[tuple[int, int], ...]
    seconds: float = 0.0
    group: str = ""


@dataclass(frozen=True)
class Graph:
    """Operators in order, and what the graph returns, as :attr:`Operator.inputs` has it.

    ``is_sequence``: there is no graph of the program. The operators are those that a call was seen to run, each after
    the one before.
    """

    operators: tuple[Operator, ...]
    results: tuple[tuple[int, int], ...]
    is_sequence: bool = False


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
        operators: the numbers of what it computes in the group's graph.
        after: the numbers of the earlier kernels whose results it reads, -1 for inputs of the group.
        is_result: it writes a result of the group.
    """

    symbol: str
    ops: tuple[str, ...]
    source: str
    loops: str
    flops: int
    bytes: int
    seconds: float
    share: float
    operators: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    is_result: bool = False

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
        origin: where its code came from: ``"compiled"``, ``"disk"``, ``"memory"``, or ``"package"``, where no more is
            known of it than its kernels' names; empty where there is none.
        seconds: what compiling it, or finding it, took.
        packed_bytes: of weights, in the order in which its kernels read them.
        workspace_bytes: of intermediate results; of a dynamic one only of what packs need.
        failure: why there is no code, or which operators it leaves out; empty if nothing is.
        kernels: of the code, in order. Those of code that ran have times.
        key: names the program in logs and in ``TORCHMDLA_DUMP``'s folders; empty where there is no code.
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
    key: str = ""


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
        graph: its operators.
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
    graph: Graph = Graph((), ())


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
class Activity:
    """What a thread was at while the model was explained.

    Attributes:
        kind: ``"explain"``, a part of that; of compiling ``"specialise"``, all of it, ``"import"``, ``"compile"``,
            ``"lower"``, ``"stage"``, ``"pass"`` and ``"load"``; of calls ``"run"``, a group, ``"record"``, its first
            run by eager operators, ``"pack"``, of its weights, ``"fall back"`` in PyTorch's interpreter, and
            ``"operator"``, outside of groups.
        thread: its name, with that of the process where it is another one.
        start: in seconds since the beginning.
    """

    name: str
    kind: str
    thread: str
    start: float
    seconds: float


@dataclass(frozen=True)
class MemoryUse:
    """``resident`` bytes of the process (0 where the system does not tell), those of them that are ``packed`` weights
    and the ``workspace`` of threads, ``seconds`` after the beginning."""

    seconds: float
    resident: int
    packed: int
    workspace: int


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
        graph: the model's operators outside of groups, and its groups.
        timeline: what threads were at, by their beginnings.
        memory: in order.
        model: what the model is called.
        programs: what the compiler was given, and where its code calls kernels, by key, for :meth:`save`;
            :meth:`to_dict` leaves it out.
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
    graph: Graph = Graph((), ())
    timeline: tuple[Activity, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    model: str = ""
    programs: Mapping[str, tuple[bytes, tuple[KernelCall, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

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
        plain: dict[str, Any] = json.loads(json.dumps(asdict(replace(self, programs={}))))
        del plain["programs"]
        return {"summary": self.summary, **plain}

    def to_json(self, indent: int | None = None) -> str:
        """:meth:`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def save(self, path: str | Path) -> None:
        """Writes a page about the model to ``path``: one HTML file that needs no network.

        For the text of each stage every program is compiled once more.

        Raises:
            OSError: ``path`` cannot be written.
            RuntimeError: this copy of torchmdla was built without what lays graphs out; says what to do.
        """
        from torchmdla.report.page import save

        save(self, path)

    def __str__(self) -> str:
        from torchmdla.report.rendering import as_text, tables

        return as_text(tables(self))

    def _repr_html_(self) -> str:
        from torchmdla.report.rendering import as_html, tables

        return as_html(tables(self))


def _percent(part: float, whole: float) -> str:
    """Rounded down, so that 100 % is all."""
    return f"{int(part / whole * 1000) / 10:g} %" if whole else "0 %"
