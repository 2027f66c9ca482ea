"""Tests of statistics as Prometheus metrics."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from child_process import run_python
from torch import nn

import torchmdla

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from torchmdla import prometheus


def samples(page: bytes) -> dict[tuple[str, ...], float]:
    """Return the samples by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_calls_are_counted() -> None:
    # No package of another test has these sizes.
    model = nn.Sequential(nn.Linear(11, 13), nn.ReLU()).eval()
    x = torch.randn(2, 11)
    compiled = torchmdla.compile(model, x)
    with torch.no_grad():
        for _ in range(5):
            compiled(x)
        with torchmdla.enabled(False):
            compiled(x)
    statistics, metrics = torchmdla.stats(), samples(prometheus.page())
    assert metrics["torchmdla_specialisations_total",] == statistics.specialisations == 1
    assert (
        metrics["torchmdla_calls_total", "compiled"] == sum(group.compiled_calls for group in statistics.by_group) >= 5
    )
    assert metrics["torchmdla_calls_total", "fallback"] == 1
    assert metrics["torchmdla_fallbacks_total", "torchmdla is switched off"] == 1
    assert metrics["torchmdla_compile_seconds_total",] == pytest.approx(statistics.compile_seconds)
    assert metrics["torchmdla_code_bytes",] == statistics.memory.code > 0
    sources = ("compiled", "disk", "memory", "store")
    assert sum(metrics["torchmdla_programs_total", source] for source in sources) == 1


def test_calls_of_a_model_that_is_gone_stay_counted(tmp_path: Path) -> None:
    """Check that counters never decrease. Prometheus interprets a decrease as a restart."""
    path = tmp_path / "model.pt"
    torch.jit.script(nn.Sequential(nn.Linear(11, 3), nn.ReLU()).eval()).save(str(path))
    program, x = torch.jit.load(path), torch.randn(2, 11)
    with torch.no_grad():
        for _ in range(5):
            program(x)
    before = torchmdla.stats()
    assert before.compiled_calls == sum(group.compiled_calls for group in before.by_group) > 0
    del program
    gc.collect()
    after = torchmdla.stats()
    assert after.by_group == ()
    assert (after.compiled_calls, after.recorded_calls) == (before.compiled_calls, before.recorded_calls)
    assert samples(prometheus.page())["torchmdla_calls_total", "compiled"] == before.compiled_calls
    for _ in range(2):
        torchmdla.reset_stats()
        assert torchmdla.stats().compiled_calls == 0


def test_models_that_are_reloaded(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.trace(nn.Linear(3, 3), torch.randn(1, 3)).save(str(path))
    model = torchmdla.ReloadingModel(path)
    model.reload()
    path.write_bytes(b"no archive")
    with pytest.raises(RuntimeError):
        model.reload()
    metrics = samples(prometheus.page())
    assert metrics["torchmdla_model_version", str(path)] == 2
    assert metrics["torchmdla_reload_failures_total", str(path)] == 1


def test_reasons_are_bounded() -> None:
    counts = prometheus._limit_reasons({f"reason {number}": number for number in range(1, 101)})
    assert len(counts) == prometheus._MOST_REASONS + 1
    assert sum(counts.values()) == 5050


def test_registering_twice_is_an_error() -> None:
    registry = CollectorRegistry(auto_describe=True)
    prometheus.register(registry)
    with pytest.raises(ValueError, match="uplicated"):
        prometheus.register(registry)


def test_without_the_package() -> None:
    done = run_python("import sys; sys.modules['prometheus_client'] = None; import torchmdla; torchmdla.prometheus")
    assert "pip install" in done.stderr
