"""The exceptions that torchmdla raises."""

from __future__ import annotations

from typing import Any


class CompileError(RuntimeError):
    """A group could not be compiled.

    Raised to the user only with ``strict=True``; otherwise the group falls back to PyTorch's interpreter and the
    error becomes one warning and one row of :func:`torchmdla.stats`.

    Attributes:
        op: the operator at fault, as ``aten::add.Tensor``; empty when no single operator is.
        source: where the operator stands in the user's program (``file:line``); empty when unknown.
        diagnostic: what the compiler said, word for word.
        too_long: a size that programs grow with, and that is too large to be written out; compiled for any sizes the
            group may do. None where no size is to blame.
    """

    def __init__(
        self, reason: str, *, op: str = "", source: str = "", diagnostic: str = "", too_long: int | None = None
    ) -> None:
        self.reason = reason
        self.op = op
        self.source = source
        self.diagnostic = diagnostic
        self.too_long = too_long
        place = f"{op}: " if op else ""
        at = f" (at {source})" if source else ""
        tail = f"\n{diagnostic}" if diagnostic else ""
        super().__init__(f"{place}{reason}{at}{tail}")

    def fields(self) -> dict[str, Any]:
        """``CompileError(**fields)`` is this error again, in another process."""
        names = ("reason", "op", "source", "diagnostic", "too_long")
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


def _rebuild_device_error(fault: str, group: str) -> DeviceError:
    return DeviceError(fault, group=group)


def _rebuild(fields: dict[str, Any]) -> CompileError:
    return CompileError(**fields)
