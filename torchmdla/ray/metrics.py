"""What a model does in its actor, as metrics of Ray, which Prometheus collects (docs/ray.md has the list)."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, fields

from ray.util.metrics import Counter, Histogram

import torchmdla

_TAG = "model"
_DESCRIPTIONS = {
    "batches": "Batches that were computed.",
    "rows": "Rows of these batches.",
    "compiled_calls": "Calls of groups that ran compiled.",
    "fallbacks": "Calls of groups that ran in PyTorch's interpreter.",
    "specialisations": "Groups that were compiled for given types of inputs, or found so.",
    "compile_seconds": "Seconds that were spent in the compiler.",
}
# Of a batch, from a small model's to a large one's that is compiled in the middle of it.
_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0]


@dataclass(frozen=True)
class _Activity:
    """What torchmdla did in this process, of :func:`torchmdla.stats`."""

    compiled_calls: int = 0
    fallbacks: int = 0
    specialisations: int = 0
    compile_seconds: float = 0.0

    @classmethod
    def now(cls) -> _Activity:
        stats = torchmdla.stats()
        return cls(
            compiled_calls=stats.compiled_calls,
            fallbacks=sum(stats.fallbacks.values()),
            specialisations=stats.specialisations,
            compile_seconds=stats.compile_seconds,
        )

    def since(self, before: _Activity) -> dict[str, float]:
        """What was added. Counts that are smaller than before were reset."""
        return {
            field.name: max(0, getattr(self, field.name) - getattr(before, field.name)) for field in fields(_Activity)
        }


class _Reported:
    """What of this process was reported, so that models that share it report nothing twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._activity = _Activity()

    def take(self) -> dict[str, float]:
        with self._lock:
            now = _Activity.now()
            added, self._activity = now.since(self._activity), now
        return added


_reported = _Reported()


class Meter:
    """Counts what one model does.

    Args:
        model: the name of the model, the tag of its metrics.
    """

    def __init__(self, model: str) -> None:
        self._tags = {_TAG: model}

    def count_activity(self) -> None:
        """Adds what torchmdla did since it was last reported."""
        self._add(_reported.take())

    def count_batch(self, rows: int, seconds: float) -> None:
        """Adds a batch, and what torchmdla did for it."""
        self._add({"batches": 1, "rows": rows})
        _histogram().observe(seconds, tags=self._tags)
        self.count_activity()

    def _add(self, counts: dict[str, float]) -> None:
        for name, count in counts.items():
            if count > 0:
                _counters()[name].inc(count, tags=self._tags)


@functools.cache
def _counters() -> dict[str, Counter]:
    return {name: Counter(f"torchmdla_{name}", text, (_TAG,)) for name, text in _DESCRIPTIONS.items()}


@functools.cache
def _histogram() -> Histogram:
    return Histogram("torchmdla_batch_seconds", "Seconds that a batch took.", _SECONDS, (_TAG,))
