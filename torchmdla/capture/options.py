"""What users may say about the groups of one compiled program; unsaid, :func:`torchmdla.enable` decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from torchmdla import devices


@dataclass(frozen=True)
class Options:
    """Each is None where :func:`torchmdla.enable` decides, whose arguments of these names they are."""

    device: str | None = None
    strict: bool | None = None
    background: bool | None = None
    max_specialisations: int | None = None

    def device_name(self) -> str:
        """The device that groups are for."""
        return self.device or devices.in_use()

    @classmethod
    def of(cls, options: Mapping[str, object] | None) -> Options:
        """Options by name, checked.

        Raises:
            ValueError: there is no such option, no such device, or a negative number.
            TypeError: a value of the wrong type.
        """
        options = options or {}
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise ValueError(f"no option {unknown[0]!r} of torchmdla; there are {', '.join(sorted(known))}")
        for name, value in options.items():
            if value is not None and type(value) is not _TYPES[name]:
                raise TypeError(f"option {name!r} is a {_TYPES[name].__name__}, got {type(value).__name__}")
        made = cls(**options)  # type: ignore[arg-type]
        if made.device is not None:
            devices.get(made.device)
        if made.max_specialisations is not None and made.max_specialisations < 0:
            raise ValueError(f"max_specialisations must not be negative, got {made.max_specialisations}")
        return made


_TYPES: Mapping[str, type] = {"device": str, "strict": bool, "background": bool, "max_specialisations": int}
