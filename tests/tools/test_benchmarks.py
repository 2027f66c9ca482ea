"""Every benchmark runs at its smallest settings, and writes the figures that it is for."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchmdla.testing import timing

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def is_time(times: dict[str, float]) -> bool:
    return 0 < times["min"] <= times["median"]


def check_models(found: dict[str, Any]) -> None:
    assert {row["model"] for row in found["rows"]} == {"mlp", "norms_64x256"}
    for row in found["rows"]:
        assert set(row["ways"]) == {"eager", "frozen", "torchmdla"}
        assert all(is_time(way) and way["differs"] is None for way in row["ways"].values())
        assert row["groups"] > 0
        assert row["fallbacks"] == {}
        assert row["fault"] is None
        best = row["ways"][row["best_peer"]]["min"]
        assert best == min(row["ways"][name]["min"] for name in ("eager", "frozen"))
        assert row["gain"] == pytest.approx(best / row["ways"]["torchmdla"]["min"])
    gains = [row["gain"] for row in found["rows"]]
    assert found["geometric_mean"]["1"] == pytest.approx((gains[0] * gains[1]) ** 0.5)


def check_kernels(found: dict[str, Any]) -> None:
    assert {row["kind"] for row in found["rows"]} == {"conv-1x1", "softmax"}
    for row in found["rows"]:
        assert is_time(row["torch"])
        assert is_time(row["torchmdla"])
        assert row["groups"] == 1
        assert row["fault"] is None
        assert row["limit_ms"] == pytest.approx(
            max(row["flops"] / row["peak_gflops"], row["bytes"] / row["bandwidth_gbs"]) / 1e6
        )


def check_compile_time(found: dict[str, Any]) -> None:
    (row,) = found["rows"]
    assert row["model"] == "mlp"
    assert row["programs"] == 1
    assert row["faults"] == []
    assert 0 < row["compiler_seconds"] < row["seconds"]["cold"]


def check_memory(found: dict[str, Any]) -> None:
    (row,) = found["rows"]
    for way in ("eager", "cold", "cached"):
        assert row["parameters"] < row[way]["calls"] <= row[way]["life"]
    assert row["cold"]["compiler"] > 0
    assert row["eager"]["compiler"] == 0


def check_dynamic(found: dict[str, Any]) -> None:
    assert set(found["models"]) == {"bert", "resnet18"}
    for rows in found["models"].values():
        assert len({row["size"] for row in rows}) == 3
        for row in rows:
            assert is_time(row["eager"])
            assert is_time(row["torchmdla"])
            assert row["fallbacks"] == 0
            assert row["fault"] is None


def check_generation(found: dict[str, Any]) -> None:
    assert len(found["seconds"]["torchmdla"]) == len(found["seconds"]["eager"]) > 0
    # One prompt, one token and one more for themselves, then any number of each.
    assert found["dynamic"] == 2
    assert found["specialisations"] <= 6
    assert found["fallbacks"] == {}
    assert found["faults"] == []


def check_frozen(found: dict[str, Any]) -> None:
    (row,) = found["rows"]
    assert row["model"] == "mobilenet_v2"
    assert all(is_time(row["ways"][way]) for way in ("frozen", "traced", "scripted", "in grad mode"))
    for way in ("traced", "scripted"):
        assert row["ratios"][way] == pytest.approx(row["ways"][way]["min"] / row["ways"]["frozen"]["min"])
    assert row["faults"] == []


def check_written_weights(found: dict[str, Any]) -> None:
    (row,) = found["rows"]
    assert row["seconds"] > 0
    assert all(call >= 1 for calls in row["calls"].values() for call in calls)


def check_devices(found: dict[str, Any]) -> None:
    assert [row["model"] for row in found["rows"]] == ["resnet18", "bert"]
    for row in found["rows"]:
        assert all(is_time(row["ways"][way]) for way in ("torchscript", "lazy", "acap"))
        for way in ("lazy", "acap"):
            assert row["ratios"][way] == pytest.approx(row["ways"][way]["min"] / row["ways"]["torchscript"]["min"])
        assert row["faults"] == []


def check_mdla_pipeline(found: dict[str, Any]) -> None:
    (row,) = found["rows"]
    assert row["same"]
    assert row["ways"]["items"]["parts"] == row["batch"]
    assert row["ways"]["default"]["cycles"] == min(way["cycles"] for way in row["ways"].values())
    assert all(milliseconds > 0 for milliseconds in row["threads"].values())


def check_mdla(found: dict[str, Any]) -> None:
    assert {row["model"] for row in found["rows"]} == {"resnet18", "lstm_linear"}
    for row in found["rows"]:
        error = {name: figures["maximum"] for name, figures in row["formats"].items()}
        assert set(error) == {"fixed16", "fixed8", "variable", "float32"}
        assert error["float32"] < error["fixed16"] < error["fixed8"]
        assert row["formats"]["float32"]["agreement"] == 1
        assert row["differs"] == ""
        assert row["fallbacks"] == {}
        assert row["cycles"] == sum(layer["cycles"] for layer in row["layers"]) > 0


@pytest.mark.parametrize(
    ("script", "options", "check"),
    [
        ("models", (), check_models),
        ("kernels", ("--kinds", "conv-1x1,softmax"), check_kernels),
        ("compile_time", (), check_compile_time),
        ("memory", (), check_memory),
        ("dynamic", (), check_dynamic),
        ("generation", (), check_generation),
        ("frozen", (), check_frozen),
        ("written_weights", (), check_written_weights),
        ("devices", (), check_devices),
        ("mdla", ("--models", "resnet18,lstm_linear"), check_mdla),
        ("mdla_pipeline", ("--models", "upscale"), check_mdla_pipeline),
    ],
)
def test_benchmark(
    script: str, options: tuple[str, ...], check: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    done = run(script, "--quick", "--json", str(file), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["benchmark"] == script
    assert found["environment"]["torch"]
    check(found)


# Imported by every Python process that finds it: makes whatever torchmdla compiles return 1 more.
_WRONG = """
import os
if "TORCHMDLA_ENABLE" in os.environ:
    import torchmdla
    right = torchmdla.compile
    def wrong(module, *inputs):
        compiled = right(module, *inputs)
        return lambda *given: compiled(*given) + 1
    torchmdla.compile = wrong
"""


def test_a_wrong_result_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_WRONG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run("models", "--quick", "--models", "mlp", "--peers", "eager")
    assert done.returncode == 1
    assert "elements of torch.float32 differ" in done.stdout
    assert "≠" in done.stdout


_ENDS = """
import os
if "TORCHMDLA_ENABLE" in os.environ:
    import dataclasses
    from harness import peers
    def prepare(subject):
        os._exit(3)
    peers.WAYS["frozen"] = dataclasses.replace(peers.WAYS["frozen"], prepare=prepare)
"""


def test_a_peer_that_ends_the_process_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_ENDS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = tmp_path / "results.json"
    done = run("models", "--quick", "--models", "mlp", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    assert set(row["ways"]) == {"eager", "torchmdla"}
    assert "status 3" in row["skipped"]["frozen"]


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("models", ("--models", "resnet")),
        ("models", ("--peers", "tensorflow")),
        ("models", ("--threads", "1,0")),
        ("memory", ("--json", "nowhere/results.json")),
    ],
)
def test_a_wrong_option_is_refused(script: str, options: tuple[str, ...]) -> None:
    done = run(script, *options)
    assert done.returncode == 2
    assert f"argument {options[0]}: " in done.stderr


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_round_never_begins_with_what_the_last_one_ended_with(number: int) -> None:
    names = [str(k) for k in range(number)]
    orders = [timing.order_of(names, index) for index in range(6)]
    assert all(sorted(order) == names for order in orders)
    following = [name for order in orders for name in order]
    pairs = set(itertools.pairwise(following))
    if number > 1:
        assert not [pair for pair in pairs if pair[0] == pair[1]]
    if number > 2:
        assert all(len([pair for pair in pairs if pair[1] == name]) > 1 for name in names)
