"""Tests that run each benchmark at its smallest settings and check its figures."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_script

from torchmdla.testing import timing

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run_script(BENCHMARKS / f"{script}.py", *options)


def is_time(times: dict[str, float]) -> bool:
    return 0 < times["min"] <= times["median"]


def check_models(results: dict[str, Any]) -> None:
    assert {row["model"] for row in results["rows"]} == {"mlp", "norms_64x256"}
    for row in results["rows"]:
        assert set(row["ways"]) == {"eager", "frozen", "torchmdla"}
        assert all(is_time(way) and way["differs"] is None for way in row["ways"].values())
        # Half a unit in the last place of float32 is at most 6e-8 of a number.
        assert all(1e-8 < way["rms_error"] < 1e-5 for way in row["ways"].values())
        assert row["groups"] > 0
        assert row["fallbacks"] == {}
        assert row["fault"] is None
        best = row["ways"][row["best_peer"]]["min"]
        assert best == min(row["ways"][name]["min"] for name in ("eager", "frozen"))
        assert row["gain"] == pytest.approx(best / row["ways"]["torchmdla"]["min"])
    gains = [row["gain"] for row in results["rows"]]
    assert results["geometric_mean"]["1"] == pytest.approx((gains[0] * gains[1]) ** 0.5)


def check_throughput(results: dict[str, Any]) -> None:
    assert {row["instances"] for row in results["rows"]} >= {1}
    for row in results["rows"]:
        assert set(row["ways"]) == {"eager", "frozen", "torchmdla"}
        assert all(0 < way["median"] <= way["max"] == max(way["rounds"]) for way in row["ways"].values())
        assert row["threads"] >= 1
        best = max(row["ways"][name]["max"] for name in ("eager", "frozen"))
        assert row["ways"][row["best_peer"]]["max"] == best
        assert row["gain"] == pytest.approx(row["ways"]["torchmdla"]["max"] / best)
        assert row["skipped"] == {} and row["fault"] is None
        assert results["geometric_mean"][str(row["instances"])] == pytest.approx(row["gain"])


def check_serving(results: dict[str, Any]) -> None:
    assert {row["model"] for row in results["rows"]} == {"mlp", "bert"}
    for row in results["rows"]:
        assert set(row["ways"]) == {"eager", "frozen", "torchmdla"}
        assert row["skipped"] == {} and row["fault"] is None
        for way in row["ways"].values():
            assert 0 < way["capacity"] == way["closed"]["rate"]["median"] <= way["closed"]["rate"]["max"]
            for load in (way["closed"], way["open"]["0.5"], *way["matched"].values()):
                assert len(load["rounds"]) == results["rounds"]
                for measurement in load["rounds"]:
                    assert measurement["requests"] >= row["instances"]
                    assert 0 < measurement["p50"] <= measurement["p95"] <= measurement["p99"]
                assert all(is_time(load[name]) for name in ("p50", "p95", "p99"))
        best = max(("eager", "frozen"), key=lambda name: row["ways"][name]["capacity"])
        assert row["ratios"]["peer"] == best
        ours, peer = row["ways"]["torchmdla"], row["ways"][best]
        assert row["ratios"]["rate"]["median"] == pytest.approx(ours["capacity"] / peer["capacity"])
        ratio = peer["open"]["0.5"]["p99"]["median"] / ours["matched"]["0.5"]["p99"]["median"]
        assert row["ratios"]["latency"]["0.5"]["p99"]["median"] == pytest.approx(ratio)
    assert [row["model"] for row in results["starts"]] == ["mlp", "bert"]
    for row in results["starts"]:
        assert set(row["ways"]) == {"frozen", "torchmdla-cold", "torchmdla-warm", "torchmdla-package"}
        assert all(is_time(way["first"]) and way["first"]["min"] < way["fifth"]["min"] for way in row["ways"].values())
        assert row["skipped"] == {} and row["faults"] == []


def check_reloading(results: dict[str, Any]) -> None:
    assert {row["model"] for row in results["rows"]} == {"mlp"}
    for row in results["rows"]:
        assert set(row["ways"]) == {"frozen", "torchmdla-warm", "torchmdla-package"}
        for way in row["ways"].values():
            assert way["reloads"]["number"] == 2
            assert way["reloading"]["number"] >= 2
            for phase in way.values():
                assert is_time(phase) and phase["p50"] <= phase["p95"] <= phase["p99"] <= phase["max"]


def check_own_reader(results: dict[str, Any]) -> None:
    assert [row["program"] for row in results["loads_ms"]] == ["mlp"]
    assert len(results["calls_us"]) == 5
    for row in (*results["loads_ms"], *results["calls_us"]):
        assert all(value > 0 for name, value in row.items() if name not in ("program", "MiB"))


def check_roofline(results: dict[str, Any]) -> None:
    (row,) = results["rows"]
    assert row["model"] == "mlp"
    assert row["kernels"]
    assert sum(kernel["flops"] for kernel in row["kernels"]) >= 2 * 4 * (32 * 64 + 3 * 64 * 64)  # the reduced MLP
    for kernel in row["kernels"]:
        gflops, gigabytes = (kernel[key] / kernel["seconds"] / 1e9 for key in ("flops", "bytes"))
        assert kernel["of_fma"] == pytest.approx(gflops / row["peak_gflops"])
        assert kernel["of_memory"] == pytest.approx(gigabytes / row["peak_gigabytes"])
        assert kernel["of_roof"] == max(kernel["of_fma"], kernel["of_memory"])
    assert 0 < row["of_roof"] <= 1
    assert row["fault"] is None


def check_kernels(results: dict[str, Any]) -> None:
    assert {row["kind"] for row in results["rows"]} == {"conv-1x1", "softmax"}
    for row in results["rows"]:
        assert is_time(row["torch"])
        assert is_time(row["torchmdla"])
        assert row["groups"] == 1
        assert row["fault"] is None
        assert row["limit_ms"] == pytest.approx(
            max(row["flops"] / row["peak_gflops"], row["bytes"] / row["bandwidth_gbs"]) / 1e6
        )


def check_algorithms(results: dict[str, Any]) -> None:
    layer, model = results["rows"]
    assert set(layer["ways"]) == {"direct", "winograd2", "winograd4", "fast"}
    assert set(model["ways"]) == {"direct", "winograd", "fast"}
    for row in (layer, model):
        assert all(map(is_time, row["ways"].values()))
        assert row["faults"] == []
    assert layer["errors"]["direct"] < layer["errors"]["winograd2"] < layer["errors"]["winograd4"] < 1e-5


def check_compile_time(results: dict[str, Any]) -> None:
    (row,) = results["rows"]
    assert row["model"] == "mlp"
    assert row["programs"] == 1
    assert row["faults"] == []
    assert 0 < row["compiler_seconds"] < row["seconds"]["cold"]
    assert set(row["peers"]) == {"inductor"}
    assert all(seconds > 0 for seconds in row["peers"]["inductor"].values())


def check_memory(results: dict[str, Any]) -> None:
    (row,) = results["rows"]
    for way in ("eager", "cold", "cached", "mapped", "package"):
        assert row["parameters"] < row[way]["calls"] <= row[way]["life"]
    assert row["cold"]["compiler"] > 0
    assert row["eager"]["compiler"] == 0


def check_native(results: dict[str, Any]) -> None:
    engines = {row["engine"] for row in results["rows"]}
    assert "torchmdla, Python" in engines
    for row in results["rows"]:
        assert is_time(row["start"]) and is_time(row["call"])
        assert row["library"] > 0 and 0 < row["private"] < row["peak"]


def check_dynamic(results: dict[str, Any]) -> None:
    assert set(results["models"]) == {"bert", "resnet18"}
    for rows in results["models"].values():
        assert len({row["size"] for row in rows}) == 3
        for row in rows:
            assert is_time(row["eager"])
            assert is_time(row["torchmdla"])
            assert row["fallbacks"] == 0
            assert row["fault"] is None


def check_generation(results: dict[str, Any]) -> None:
    assert len(results["seconds"]["torchmdla"]) == len(results["seconds"]["eager"]) > 0
    # The first programs are for one prompt, one token and one more. Then two programs support any number of each.
    assert results["dynamic"] == 2
    assert results["specialisations"] <= 6
    assert results["fallbacks"] == {}
    assert results["faults"] == []
    generated = results["generate"]["gpt2"]["torchmdla"]
    assert generated["is_equal"] and generated["programs"] <= 4 and generated["fallbacks"] == {}
    assert [len(run) for run in generated["runs"]] == [4, 4]


def check_training(results: dict[str, Any]) -> None:
    assert [row["model"] for row in results["rows"]] == ["mlp", "lstm"]
    for row in results["rows"]:
        assert row["faults"] == {}
        systems = {"eager", "torchmdla", "torchscript", "lazy", "acap"}
        assert set(row["times"]) == set(row["losses"]) == systems
        assert all(is_time(times) for times in row["times"].values())
        assert not row["memory_mib"] or set(row["memory_mib"]) == systems


def check_frozen(results: dict[str, Any]) -> None:
    (row,) = results["rows"]
    assert row["model"] == "mobilenet_v2"
    assert all(is_time(row["ways"][way]) for way in ("frozen", "traced", "scripted", "in grad mode"))
    for way in ("traced", "scripted"):
        assert row["ratios"][way] == pytest.approx(row["ways"][way]["min"] / row["ways"]["frozen"]["min"])
    assert row["faults"] == []


def check_written_weights(results: dict[str, Any]) -> None:
    (row,) = results["rows"]
    assert row["seconds"] > 0
    assert all(call >= 1 for calls in row["calls"].values() for call in calls)


def check_precisions(results: dict[str, Any]) -> None:
    errors = {row["precision"]: row["ways"]["torchmdla"]["error"] for row in results["rows"]}
    assert errors["float32"] < 1e-6 < min(error for name, error in errors.items() if name != "float32" and error > 1e-5)
    for row in results["rows"]:
        assert row["faults"] == []
        assert all(is_time(way) and way["agreement"] > 0.95 for way in row["ways"].values())


def check_integers(results: dict[str, Any]) -> None:
    (row,) = results["rows"]
    assert set(row["ways"]) == {"script", "torchmdla-float32", "torchmdla-script", "torchmdla"}
    assert all(is_time(way) for way in row["ways"].values())
    assert row["ways"]["torchmdla-float32"]["rms_error"] < 1e-5 < row["ways"]["torchmdla"]["rms_error"] < 0.2
    assert row["faults"] == []


def check_decoding(results: dict[str, Any]) -> None:
    assert [row["weights"] for row in results["rows"]] == ["float32", "int8"]
    for row in results["rows"]:
        assert all(is_time(row["ways"][way]) for way in ("eager", "torchmdla"))
        assert row["faults"] == []
    assert results["rows"][0]["bytes"] > 3 * results["rows"][1]["bytes"] > 0


def check_devices(results: dict[str, Any]) -> None:
    assert [row["model"] for row in results["rows"]] == ["resnet18", "bert"]
    for row in results["rows"]:
        assert all(is_time(row["ways"][way]) for way in ("torchscript", "lazy", "acap"))
        for way in ("lazy", "acap"):
            assert row["ratios"][way] == pytest.approx(row["ways"][way]["min"] / row["ways"]["torchscript"]["min"])
        assert row["faults"] == []


def check_mdla_pipeline(results: dict[str, Any]) -> None:
    (row,) = results["rows"]
    assert row["same"]
    assert row["ways"]["items"]["parts"] == row["batch"]
    assert row["ways"]["default"]["cycles"] == min(way["cycles"] for way in row["ways"].values())
    assert all(milliseconds > 0 for milliseconds in row["threads"].values())


def check_mdla(results: dict[str, Any]) -> None:
    assert {row["model"] for row in results["rows"]} == {"resnet18", "lstm_linear"}
    for row in results["rows"]:
        error = {name: figures["maximum"] for name, figures in row["formats"].items()}
        assert set(error) == {"fixed16", "fixed8", "variable", "float32"}
        assert error["float32"] < error["fixed16"] < error["fixed8"]
        assert row["formats"]["float32"]["agreement"] == 1
        assert row["differs"] == ""
        assert row["fallbacks"] == {}
        assert row["cycles"] == sum(layer["cycles"] for layer in row["layers"]) > 0


def check_scaling_threads(results: dict[str, Any]) -> None:
    assert [(row["model"], row["threads"]) for row in results["rows"]] == [
        (model, threads) for model in ("mlp", "norms_64x256") for threads in (1, 4)
    ]
    for row in results["rows"]:
        assert (row.get("seconds", 0) > 0) == (row["threads"] <= len(os.sched_getaffinity(0)))
        assert sum(kernel["part"] for kernel in row["kernels"]) == pytest.approx(1)
        assert all(1 <= kernel["tasks"] <= row["threads"] for kernel in row["kernels"])
        assert all(("seconds" in kernel) == ("seconds" in row) for kernel in row["kernels"])
        assert 0.5 < row["speed_up"] <= row["threads"]


@pytest.mark.parametrize(
    ("script", "options", "check"),
    [
        ("models", (), check_models),
        ("throughput", (), check_throughput),
        ("serving", (), check_serving),
        ("reloading", (), check_reloading),
        ("own_reader", (), check_own_reader),
        ("roofline", (), check_roofline),
        ("scaling_threads", (), check_scaling_threads),
        ("roofline", ("--training", "mlp"), check_roofline),
        ("kernels", ("--kinds", "conv-1x1,softmax"), check_kernels),
        ("algorithms", ("--models", "resnet18"), check_algorithms),
        ("compile_time", ("--peers", "inductor"), check_compile_time),
        ("memory", (), check_memory),
        ("native", ("--threads", "1"), check_native),
        ("dynamic", (), check_dynamic),
        ("generation", (), check_generation),
        ("training", ("--compile-optimiser",), check_training),
        ("frozen", (), check_frozen),
        ("written_weights", (), check_written_weights),
        ("devices", (), check_devices),
        ("precisions", (), check_precisions),
        ("integers", (), check_integers),
        ("decoding", ("--ways", "eager,torchmdla"), check_decoding),
        ("mdla", ("--models", "resnet18,lstm_linear"), check_mdla),
        ("mdla_pipeline", ("--models", "upscale"), check_mdla_pipeline),
    ],
)
@pytest.mark.sampled(0)
def test_benchmark(
    script: str, options: tuple[str, ...], check: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    done = run(script, "--quick", "--json", str(file), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    assert results["benchmark"] == script
    assert results["environment"]["torch"]
    check(results)


# Every Python process that finds this module imports it. It adds 1 to all results of compiled programs.
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


@pytest.mark.sampled(0)
def test_a_wrong_result_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_WRONG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run("models", "--quick", "--models", "mlp", "--peers", "eager")
    assert done.returncode == 1
    assert "elements of torch.float32 differ" in done.stdout
    assert "≠" in done.stdout


@pytest.mark.parametrize("script", ["throughput", "roofline"])
@pytest.mark.sampled(0)
def test_a_model_that_does_not_run_fails(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_FAILS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run(script, "--quick")
    assert done.returncode == 1
    assert "no compiler today" in done.stdout


# This peer replaces ncnn. Its results are eager's times a factor.
_SCALED = """
import os
if "TORCHMDLA_ENABLE" in os.environ:
    import dataclasses
    from harness import peers
    def prepare(subject):
        run = lambda *given: subject.module(*given) * FACTOR
        return peers.Prepared(lambda given: lambda: run(*given), lambda result: [result])
    peers.VARIANTS["ncnn"] = peers.Variant("scaled", prepare)
"""


def row_with_a_scaled_peer(factor: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """Return the MLP's row and the output of a benchmark with a peer whose results are scaled."""
    (folder / "sitecustomize.py").write_text(_SCALED.replace("FACTOR", repr(factor)))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    file = folder / "results.json"
    done = run("models", "--quick", "--models", "mlp", "--peers", "eager,ncnn", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    return row, done.stdout


@pytest.mark.sampled(0)
def test_errors_stand_beside_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, printed = row_with_a_scaled_peer(1 + 5e-6, tmp_path, monkeypatch)
    scaled = row["ways"]["ncnn"]
    assert is_time(scaled)
    assert scaled["rms_error"] == pytest.approx(5e-6, rel=0.1)
    assert f"{scaled['rms_error']:.1e}" in printed
    assert f"{row['ways']['eager']['rms_error']:.1e}" in printed


@pytest.mark.sampled(0)
def test_a_wrong_peer_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, printed = row_with_a_scaled_peer(1.01, tmp_path, monkeypatch)
    wrong = row["ways"]["ncnn"]
    assert "elements of torch.float32 differ" in wrong["differs"]
    assert "min" not in wrong and "rounds_s" not in wrong
    assert wrong["rms_error"] == pytest.approx(0.01, rel=0.01)
    assert row["best_peer"] == "eager"
    assert row["fault"] is None
    assert "mlp: ncnn not timed: " in printed


# This module makes torchmdla.compile raise an error.
_FAILS = """
import sys
if "-m" in sys.orig_argv or "spawn_main" in " ".join(sys.orig_argv):
    import os
    os.environ.setdefault("TORCHMDLA_ENABLE", "0")
    import torchmdla
    def fail(module, *inputs):
        raise RuntimeError("no compiler today")
    torchmdla.compile = fail
"""


_ENDS = """
import os
if "TORCHMDLA_ENABLE" in os.environ:
    import dataclasses
    from harness import peers
    def prepare(subject):
        os._exit(3)
    peers.VARIANTS["frozen"] = dataclasses.replace(peers.VARIANTS["frozen"], prepare=prepare)
"""


@pytest.mark.sampled(0)
def test_a_peer_that_ends_the_process_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_ENDS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = tmp_path / "results.json"
    done = run("models", "--quick", "--models", "mlp", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    assert set(row["ways"]) == {"eager", "torchmdla"}
    assert "status 3" in row["skipped"]["frozen"]


@pytest.mark.sampled(0)
def test_a_peer_that_ends_an_instance_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = _ENDS.replace('if "TORCHMDLA_ENABLE" in os.environ:', "import sys\nif 'spawn_main' in str(sys.orig_argv):")
    (tmp_path / "sitecustomize.py").write_text(ends)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(BENCHMARKS))))
    file = tmp_path / "results.json"
    done = run("throughput", "--quick", "--peers", "eager,frozen", "--instances", "1", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    assert set(row["ways"]) == {"eager", "torchmdla"}
    assert row["skipped"] == {"frozen": "ended the process with status 3"}


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports a module of the benchmarks' harness."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: importlib.import_module(f"harness.{name}")


def test_latencies_count_from_when_requests_were_to_come(harness: Callable[[str], Any]) -> None:
    load = harness("load")

    class AtOnce:
        """Load of four requests that are all due at the beginning."""

        seed = 0

        def servers(self, slots: int) -> int:
            return slots

        def begin(self) -> AtOnce:
            self._left = deque([time.monotonic()] * 4)
            return self

        def next(self) -> float | None:
            return self._left.popleft() if self._left else None

        def record_answer(self, at: float) -> None:
            pass

    for slots, least in ((1, (0.05, 0.1, 0.15, 0.2)), (2, (0.05, 0.05, 0.1, 0.1))):
        answers = load.serve([lambda: time.sleep(0.05)], AtOnce(), slots)
        pairs = zip(sorted(answers.latencies), least, strict=True)
        assert all(latency >= wait for latency, wait in pairs)
        assert answers.seconds >= max(answers.latencies)


def test_requests_come_at_random_times_that_a_rate_stretches(harness: Callable[[str], Any]) -> None:
    load = harness("load")
    slow, quick = load.Open(100.0, 50.0, seed=3).arrivals(), load.Open(200.0, 25.0, seed=3).arrivals()
    assert quick == pytest.approx([time / 2 for time in slow])
    assert load.Open(100.0, 50.0, seed=4).arrivals() != slow
    gaps = [later - earlier for earlier, later in itertools.pairwise(slow)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.01, rel=0.1)
    # The distribution is exponential: its standard deviation equals its mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.1)
    assert len(load.Open(0.001, 1.0).arrivals()) == 1


def test_clients_of_a_closed_loop_wait_for_their_answers(harness: Callable[[str], Any]) -> None:
    load = harness("load")
    under_way, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.002)
        with lock:
            under_way -= 1

    for clients, slots in ((1, 1), (3, 1), (1, 3), (3, 2)):
        most = 0
        answers = load.serve([call], load.Closed(0.1, clients), slots)
        assert most <= min(clients, slots)
        assert answers.rate == pytest.approx(len(answers.latencies) / answers.seconds)
        # By Little's law, this is the mean number of waiting requests.
        assert sum(answers.latencies) / answers.seconds <= clients


def test_errors_of_a_call_are_raised(harness: Callable[[str], Any]) -> None:
    load = harness("load")
    for slots in (1, 2):
        with pytest.raises(ZeroDivisionError):
            load.serve([lambda: 1 / 0], load.Closed(1.0, 2), slots)


def test_percentiles_are_of_the_values(harness: Callable[[str], Any]) -> None:
    percentile = harness("load").percentile
    values = [float(number) for number in reversed(range(1, 201))]
    assert [percentile(values, percent) for percent in (0, 50, 95, 99, 100)] == [1, 100, 190, 198, 200]
    assert percentile([7.0], 99) == 7.0


# Shortened files in the format that pnnx writes.
_PARAMETERS = """7767517
4 4
Input            in0        0 1 in0
{type}       unbind_1   1 1 in0 1 dim=0
LSTM             lstm_2     1 1 1 out0 0=512
"""
_EXAMPLE = """
            ex.input("in0", ncnn.Mat(in0.numpy(), batch_index=233).clone())
            _, out0 = ex.extract("out0")
            out.append(torch.from_numpy(out0.numpy(batch_index=1)))
"""


def test_files_of_ncnn_are_read(tmp_path: Path, harness: Callable[[str], Any]) -> None:
    files = harness("ncnn_files").Files(tmp_path)
    (tmp_path / "model_ncnn.py").write_text(_EXAMPLE)
    assert (files.batch_of("in0"), files.batch_of("out0")) == (233, 1)
    with pytest.raises(RuntimeError, match="names no batch of out1"):
        files.batch_of("out1")
    for kind, foreign in (("torch.unbind", ["torch.unbind"]), ("aten::sort", ["aten::sort"]), ("ReLU", [])):
        files.parameters.write_text(_PARAMETERS.format(type=kind))
        assert files.foreign_layers() == foreign


def test_files_are_made_once(tmp_path: Path, harness: Callable[[str], Any]) -> None:
    make_once = harness("peers").make_once

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        make_once(tmp_path / "files", fail)
    assert not list(tmp_path.iterdir())
    for _ in range(2):
        make_once(tmp_path / "files", lambda folder: (folder / "whole").touch(exist_ok=False))
    assert [file.name for file in (tmp_path / "files").iterdir()] == ["whole"]
    assert make_once(tmp_path / "files", fail) == tmp_path / "files"


def test_accuracy_is_of_the_worst_tensor(harness: Callable[[str], Any]) -> None:
    accuracy = harness("accuracy")
    exact = [torch.tensor([3.0, 4.0], dtype=torch.float64), torch.ones(4, dtype=torch.float64)]
    near = [torch.tensor([3.0, 4.5]), torch.ones(4)]
    assert accuracy.relative_rms(near, exact) == pytest.approx(0.1)
    assert math.isnan(accuracy.relative_rms(near[:1], exact))
    assert math.isnan(accuracy.relative_rms([near[0], torch.full((4,), math.nan)], exact))


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("models", ("--models", "resnet")),
        ("models", ("--peers", "tensorflow")),
        ("models", ("--threads", "1,0")),
        ("throughput", ("--instances", "100000")),
        ("throughput", ("--seconds", "0")),
        ("throughput", ("--seconds", "soon")),
        ("serving", ("--fractions", "0.5,0")),
        ("serving", ("--instances", "100000")),
        ("serving", ("--peers", "ncnn")),
        ("roofline", ("--models", "resnet")),
        ("memory", ("--json", "nowhere/results.json")),
    ],
)
def test_a_wrong_option_is_refused(script: str, options: tuple[str, ...]) -> None:
    done = run(script, *options)
    assert done.returncode == 2
    assert f"argument {options[0]}: " in done.stderr


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_round_never_begins_with_the_last_variant_of_the_previous_one(number: int) -> None:
    names = [str(k) for k in range(number)]
    orders = [timing.order_of(names, index) for index in range(6)]
    assert all(sorted(order) == names for order in orders)
    following = [name for order in orders for name in order]
    pairs = set(itertools.pairwise(following))
    if number > 1:
        assert not [pair for pair in pairs if pair[0] == pair[1]]
    if number > 2:
        assert all(len([pair for pair in pairs if pair[1] == name]) > 1 for name in names)
