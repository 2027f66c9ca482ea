"""Metrics of a model in its actor, for Ray and Prometheus (docs/ray.md has the list)."""

from __future__ import annotations

import functools
import threading

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
# Histogram boundaries in seconds per batch, from a small model to a large model that is compiled during the batch.
_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0]


# Counters of torchmdla that models of this process have reported. Models that share it do not report them twice.
_reported: dict[str, float] = {}
_lock = threading.Lock()


def _take_activity() -> dict[str, float]:
    """Return the increase of each counter since the last call. A counter that is smaller than before was reset."""
    with _lock:
        stats = torchmdla.stats()
        now = {
            "compiled_calls": stats.compiled_calls,
            "fallbacks": sum(stats.fallbacks.values()),
            "specialisations": stats.specialisations,
            "compile_seconds": stats.compile_seconds,
        }
        added = {name: max(0, count - _reported.get(name, 0)) for name, count in now.items()}
        _reported.update(now)
    return added


class Meter:
    """Counters of one model.

    Args:
        model: the name of the model, the tag of its metrics.
    """

    def __init__(self, model: str) -> None:
        self._tags = {_TAG: model}

    def count_activity(self) -> None:
        """Add the activity of torchmdla since the last report."""
        self._add(_take_activity())

    def count_batch(self, rows: int, seconds: float) -> None:
        """Add a batch, and the activity of torchmdla for it."""
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
