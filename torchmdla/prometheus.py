"""Prometheus metrics of the counts in :func:`torchmdla.stats`.

They need the package ``prometheus-client``: ``pip install 'torchmdla[prometheus]'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

try:
    from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise ImportError('metrics need the package "prometheus-client": pip install "torchmdla[prometheus]"') from None

from torchmdla import reloading
from torchmdla.report.statistics import Statistics, stats

# Most reasons with a separate line: those with the highest counts. The others are summed. Prometheus keeps one time
# series for each reason.
_MOST_REASONS = 50
_OTHERS = "others"


class StatisticsCollector(Collector):
    """Metrics of this process, read on each request.

    ``torchmdla.reset_stats()`` resets the counters. Prometheus treats that as a restart.
    """

    def collect(self) -> Iterable[Metric]:
        statistics = stats()
        yield from _counters(statistics)
        yield from _labelled_counters(statistics)
        yield from _gauges(statistics)
        yield from _reloads()


def register(registry: CollectorRegistry = REGISTRY) -> StatisticsCollector:
    """Add the metrics to a registry.

    The default registry is the one that ``prometheus_client`` serves (``start_http_server``, ``make_asgi_app``).

    Raises:
        ValueError: the registry has these metrics already.
    """
    collector = StatisticsCollector()
    registry.register(collector)
    return collector


def page() -> bytes:
    """Return the metrics of torchmdla alone, in Prometheus's text format."""
    registry = CollectorRegistry()
    register(registry)
    return generate_latest(registry)


def _counters(statistics: Statistics) -> Iterator[Metric]:
    store = statistics.store
    for name, text, value in (
        ("groups", "groups that the fusion pass formed", statistics.groups),
        ("specialisations", "groups compiled for given input types", statistics.specialisations),
        ("dynamic_specialisations", "of them, those for any sizes", statistics.dynamic),
        ("packaged_specialisations", "specialisations taken from packages", statistics.packaged),
        ("compile_seconds", "time spent in the compiler", statistics.compile_seconds),
        ("compile_failures", "programs that could not be compiled", statistics.failures),
        ("memory_unpacked", "specialisations that lost packed weights to the limit", statistics.memory.unpacked),
        ("memory_evicted", "specialisations taken out for the limit", statistics.memory.evicted),
        ("memory_over_limit", "times that more was needed at once than fits", statistics.memory.over_limit),
        ("speed_checks", "comparisons of code with PyTorch's operators", statistics.speed_checks),
        ("speed_check_seconds", "time spent on them", statistics.speed_check_seconds),
        ("replaced_specialisations", "specialisations slower than PyTorch's operators", statistics.replaced),
        ("store_stored", "artifacts that were put into the store", store.stored),
        ("store_misses", "programs that the store did not have", store.misses),
        ("store_waits", "programs that another process was waited for", store.waits),
        ("store_skipped", "operations of the store left out after a failure", store.skipped),
        ("store_seconds", "time spent on the store", store.seconds),
        ("store_read_bytes", "bytes read from the store", store.bytes_read),
        ("store_written_bytes", "bytes written to the store", store.bytes_written),
    ):
        yield CounterMetricFamily(f"torchmdla_{name}", text, value=value)


def _labelled_counters(statistics: Statistics) -> Iterator[Metric]:
    calls = {
        "compiled": statistics.compiled_calls,
        "recorded": statistics.recorded_calls,
        "training": statistics.training_calls,
        "fallback": sum(statistics.fallbacks.values()),
    }
    programs = {
        "compiled": statistics.compiled,
        "disk": statistics.cache_hits,
        "memory": statistics.memory_hits,
        "store": statistics.store.hits,
    }
    for name, label, text, counts in (
        ("calls", "kind", "calls of groups, by how they ran", calls),
        ("programs", "source", "programs, by where their code came from", programs),
        ("fallbacks", "reason", "calls of groups in PyTorch's interpreter", statistics.fallbacks),
        ("left_out", "reason", "specialisations without an operator", statistics.left_out),
        ("ungrouped", "reason", "graphs with an operator outside of groups", statistics.ungrouped),
        ("packages", "target", "files loaded with the code of their groups", statistics.packages),
        ("packages_refused", "reason", "packages that are not used", statistics.refused),
        ("store_refused", "reason", "entries of the store that are not used", statistics.store.refused),
        ("store_problems", "reason", "operations of the store that failed", statistics.store.problems),
    ):
        family = CounterMetricFamily(f"torchmdla_{name}", text, labels=[label])
        for value, count in _limit_reasons(counts).items():
            family.add_metric([value], count)
        yield family


def _gauges(statistics: Statistics) -> Iterator[Metric]:
    memory = statistics.memory
    for name, text, value in (
        ("packed_bytes", "memory of packed weights", memory.packed),
        ("code_bytes", "memory of code, and what belongs to it", memory.code),
        ("workspace_bytes", "memory of the workspaces of threads", memory.workspace),
        ("memory_limit_bytes", "of packed weights and code; 0 for none", memory.limit),
        ("live_groups", "groups that live and were called", len(statistics.by_group)),
    ):
        yield GaugeMetricFamily(f"torchmdla_{name}", text, value=value)


def _reloads() -> Iterator[Metric]:
    version = GaugeMetricFamily("torchmdla_model_version", "how often the file was loaded", labels=["path"])
    failures = CounterMetricFamily("torchmdla_reload_failures", "loads of the file that failed", labels=["path"])
    for model in reloading.statistics():
        version.add_metric([model.path], model.version)
        failures.add_metric([model.path], model.failures)
    yield version
    yield failures


def _limit_reasons(counts: Mapping[str, Any]) -> dict[str, Any]:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    rest = sum(count for _, count in ordered[_MOST_REASONS:])
    return {**dict(ordered[:_MOST_REASONS]), **({_OTHERS: rest} if rest else {})}
