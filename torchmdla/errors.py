"""The exceptions that torchmdla raises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

# How far a failure of an op to compile goes: for all tensors of the same dtypes and ranks, for tensors of the same
# sizes, or for this place of the program alone.
Scope = Literal["types", "sizes", "place"]


class CompileError(RuntimeError):
    """A group could not be compiled.

    Raised to the user only with ``strict=True``; otherwise the group is divided around the op at fault or, where none
    is known, falls back to PyTorch's interpreter, and the error becomes one warning and one row of
    :func:`torchmdla.stats`.

    Attributes:
        op: the operator at fault, as ``aten::add.Tensor``; empty when no single operator is.
        source: where the operator stands in the user's program (``file:line``); empty when unknown.
        diagnostic: what the compiler said, word for word.
        unroll_limit_exceeded: a size that programs grow with, and that is too large to be written out; compiled for any
            sizes the group may do. None where no size is to blame.
        elsewhere: the sizes of this call are to blame: at others the group may be one for all sizes.
        retry_after: of a failure that may pass (no process could be started, one was killed from outside) the seconds
            after which the program is compiled again if it is asked for. None where a failure is for good.
        nodes: the numbers of the group's nodes that are at fault; empty where none is known.
        parts: an error for each of several nodes.
        scope: with which tensors the op fails; that is how far torchmdla remembers it.
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
        """``CompileError(**fields)`` is this error again, in another process."""
        plain = ("reason", "op", "source", "diagnostic", "elsewhere", "retry_after", "nodes", "scope")
        names = (*plain, "unroll_limit_exceeded")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.fields(),)


class DeviceError(RuntimeError):
    """A device failed: its library is missing or not the right one, it refused a program, or a run went wrong.

    Raised to the user only with ``strict=True``; otherwise the group falls back to PyTorch's interpreter and the error
    becomes one warning and one row of :func:`torchmdla.stats`.

    Attributes:
        fault: what happened, beginning with the device's call (``ie_run: …``).
        group: the name of the group in which it did.
    """

    def __init__(self, fault: str, *, group: str = "") -> None:
        self.fault = fault
        self.group = group
        super().__init__(f"{fault} (in group {group})" if group else fault)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_device_error, (self.fault, self.group)


class CaptureError(RuntimeError):
    """A block or a program cannot be captured by :class:`torchmdla.ModuleBuilder`, whose module stays as it was."""


class CaptureWarning(UserWarning):
    """Something of a captured block that its function has in another way than the block."""


def internal_error(error: Exception) -> CompileError:
    """``error``, a fault of torchmdla's, as one that makes a group fall back."""
    # Shortened: a message may hold whole tensors.
    return CompileError(f"internal error: {type(error).__name__}: {str(error)[:300]}")


def _rebuild_device_error(fault: str, group: str) -> DeviceError:
    return DeviceError(fault, group=group)


def _rebuild(fields: dict[str, Any]) -> CompileError:
    return CompileError(**fields)
