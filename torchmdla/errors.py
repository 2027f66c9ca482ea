"""Exceptions that torchmdla raises."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

# Range of a compile failure: tensors of the same dtypes and ranks, tensors of the same sizes, only this place of the
# program, or the group as a whole.
Scope = Literal["types", "sizes", "place", "group"]


class CompileError(RuntimeError):
    """Error of a group that could not be compiled.

    The user sees it only with ``strict=True``. Otherwise the group is divided around the operator at fault. If that
    operator is unknown, the group falls back to PyTorch's interpreter. The error becomes one warning and one row of
    :func:`torchmdla.stats`.

    Attributes:
        reason: why the group could not be compiled.
        op: operator at fault, as ``aten::add.Tensor``; empty if no single operator is at fault.
        source: location of the operator in the user's program (``file:line``); empty if unknown.
        diagnostic: message of the compiler, verbatim.
        unroll_limit_exceeded: size that is too large for a program that is unrolled over it; None if no size is at
            fault. The group may still compile for any sizes.
        elsewhere: whether the sizes of this call are at fault. The group may be compiled for all sizes at other sizes.
        retry_after: seconds after which the program is compiled again on request, if the failure may pass. That is so
            if a process could not be started or was killed from outside. None if the failure is permanent.
        nodes: numbers of the group's nodes that are at fault; empty if they are unknown.
        parts: one error for each of several nodes.
        scope: tensors with which the operator fails. torchmdla remembers the failure for these tensors. In the scope
            ``"group"`` no operator is at fault.
    """

    def __init__(
        self,
        reason: str,
        *,
        op: str = "",
        source: str = "",
        diagnostic: str = "",
        unroll_limit_exceeded: int | None = None,
        elsewhere: bool = False,
        retry_after: float | None = None,
        nodes: Iterable[int] = (),
        scope: Scope = "types",
        parts: Iterable[CompileError] = (),
    ) -> None:
        self.reason = reason
        self.op = op
        self.source = source
        self.diagnostic = diagnostic
        self.unroll_limit_exceeded = unroll_limit_exceeded
        self.elsewhere = elsewhere
        self.retry_after = retry_after
        self.nodes = tuple(nodes)
        self.scope = scope
        self.parts = tuple(parts)
        place = f"{op}: " if op else ""
        at = f" (at {source})" if source else ""
        tail = f"\n{diagnostic}" if diagnostic else ""
        super().__init__(f"{place}{reason}{at}{tail}")

    def fields(self) -> dict[str, Any]:
        """Return the arguments that rebuild this error in another process, as ``CompileError(**fields)``."""
        plain = ("reason", "op", "source", "diagnostic", "elsewhere", "retry_after", "nodes", "scope")
        names = (*plain, "unroll_limit_exceeded")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[object, ...]:
        return partial(CompileError, **self.fields()), ()


class DeviceError(RuntimeError):
    """Error of a device: its library is missing or wrong, it refused a program, or a run failed.

    The user sees it only with ``strict=True``. Otherwise the group falls back to PyTorch's interpreter. The error
    becomes one warning and one row of :func:`torchmdla.stats`.

    Attributes:
        fault: description of the fault, which begins with the device's call (``ie_run: …``).
        group: name of the group that failed.
    """

    def __init__(self, fault: str, *, group: str = "") -> None:
        self.fault = fault
        self.group = group
        super().__init__(f"{fault} (in group {group})" if group else fault)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DeviceError, self.fault, group=self.group), ()


class CaptureError(RuntimeError):
    """Error of a block or program that :class:`torchmdla.ModuleBuilder` cannot capture; its module does not change."""


class CaptureWarning(UserWarning):
    """Warning about a captured block whose function differs from the block."""


class ReadError(ValueError):
    """Error of a program's file that :func:`torchmdla.read` refuses.

    Attributes:
        reason: why the file is refused, with the remedy.
        file: the path of the file.
        record: the record of the archive at fault, such as ``code/__torch__.py``; empty for the file as a whole.
        line: the line of the record, from 1; 0 if the record is not text.
        construct: the construct of the language at fault, such as ``torch.frobnicate``; empty if it is not known.
    """

    def __init__(self, reason: str, *, file: str = "", record: str = "", line: int = 0, construct: str = "") -> None:
        self.reason = reason
        self.file = file
        self.record = record
        self.line = line
        self.construct = construct
        super().__init__(reason)

    def __str__(self) -> str:
        place = ", ".join(filter(None, [self.file, self.record + (f":{self.line}" if self.line else "")]))
        return ": ".join(filter(None, [place, self.construct, self.reason]))

    def __reduce__(self) -> tuple[object, ...]:
        places = {name: getattr(self, name) for name in ("file", "record", "line", "construct")}
        return partial(ReadError, self.reason, **places), ()


def internal_error(error: Exception) -> CompileError:
    """Return ``error``, a fault of torchmdla itself, as a CompileError, which makes the group fall back."""
    # Truncated: a message may contain whole tensors.
    return CompileError(f"internal error: {type(error).__name__}: {str(error)[:300]}")


def unknown_name(kind: str, name: object, choices: Iterable[object]) -> str:
    """Return the message for a name that is not one of the choices."""
    return f"unknown {kind} {name!r} (choose from {', '.join(map(str, choices))})"
