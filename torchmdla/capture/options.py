"""Options of the groups of one compiled program; :func:`torchmdla.enable` determines those that are unset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from torchmdla import _C, devices
from torchmdla.errors import unknown_name


@dataclass(frozen=True)
class Options:
    """Options of groups. None means the argument of the same name of :func:`torchmdla.enable`."""

    device: str | None = None
    strict: bool | None = None
    background: bool | None = None
    max_specialisations: int | None = None

    def device_name(self) -> str:
        """Return the name of the device that groups are for."""
        return self.device or devices.in_use()

    def is_strict(self) -> bool:
        return _C.is_strict() if self.strict is None else self.strict

    def is_background(self) -> bool:
        return _C.is_background() if self.background is None else self.background

    @classmethod
    def of(cls, options: Mapping[str, object] | None) -> Options:
        """Return the options with these names, after a check.

        Raises:
            ValueError: an option or the device does not exist, or a number is negative.
            TypeError: a value has the wrong type.
        """
        options = options or {}
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise ValueError(unknown_name("option", unknown[0], sorted(known)))
        for name, value in options.items():
            if value is not None and type(value) is not _TYPES[name]:
                raise TypeError(f"option {name!r} is a {_TYPES[name].__name__}, got {type(value).__name__}")
        result = cls(**options)  # type: ignore[arg-type]
        if result.device is not None:
            devices.get(result.device)
        if result.max_specialisations is not None and result.max_specialisations < 0:
            raise ValueError(f"max_specialisations must not be negative, got {result.max_specialisations}")
        return result


_TYPES: Mapping[str, type] = {"device": str, "strict": bool, "background": bool, "max_specialisations": int}
