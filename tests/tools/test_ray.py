"""Tests of predictors in actors of a local Ray cluster, and of the examples in separate processes."""

from __future__ import annotations

import fcntl
import functools
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
pytest.importorskip("ray.serve")
pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "ray"
X = np.random.default_rng(0).standard_normal((300, 6), dtype=np.float32)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Yield the address of a local cluster."""
    # Actors import torchmdla and these tests from the same folders as this process.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)])
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False,
        logging_level="error", _system_config={"metrics_report_interval_ms": 200},
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def noted_network(folder: Path) -> nn.Module:
    """Return a network and append a line to this process's file in ``folder``."""
    with open(folder / str(os.getpid()), "a") as file:
        file.write(f"{torch.get_num_threads()}\n")
    return network()


def check(ids: Sequence[int], outputs: Sequence[Any]) -> None:
    """Check that each row occurs once and has eager's values."""
    assert sorted(ids) == list(range(len(X)))
    with torch.no_grad():
        expected = network()(torch.from_numpy(X)[torch.tensor(list(ids))])
    assert_matches(torch.from_numpy(np.stack(list(outputs))), expected, layers=2)


def dataset() -> Any:
    return ray.data.from_items([{"id": row, "x": values} for row, values in enumerate(X)], override_num_blocks=10)


def predicted(rows: int, actors: int, **arguments: Any) -> dict[str, Any]:
    """Return the predictions for all rows of ``X``, computed in actors of half a CPU."""
    examples = [{"x": X[:1], "id": np.zeros(1, int)}]
    return dataset().map_batches(
        torchmdla.ray.Predictor,
        fn_constructor_kwargs={"inputs": "x", "keep": "id", "examples": examples, **arguments},
        batch_size=rows,
        num_cpus=0.5,
        compute=ray.data.ActorPoolStrategy(size=actors),
    ).to_pandas()  # fmt: skip


@pytest.mark.sampled(0)
def test_batches_of_a_dataset(cluster: str, tmp_path: Path) -> None:
    result = predicted(32, 2, model=functools.partial(noted_network, tmp_path), batch_size=32)
    check(result["id"], result["output"])
    loads = [file.read_text() for file in tmp_path.iterdir()]
    assert loads == ["1\n"] * 2  # one load in each actor, which has one thread


class KillsOnce:
    """Preprocessing that kills the first process whose batch contains row 150."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if 150 in batch["id"]:
            try:
                self._mark.touch(exist_ok=False)
            except FileExistsError:
                return batch
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


@pytest.mark.sampled(0)
def test_an_actor_that_is_killed_loses_nothing(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "loads").mkdir()
    model = functools.partial(noted_network, tmp_path / "loads")
    result = predicted(16, 1, model=model, preprocess=KillsOnce(tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert len(list((tmp_path / "loads").iterdir())) == 2  # the actor and its replacement
    check(result["id"], result["output"])


class Threads:
    """Actor that counts its threads after it created a predictor."""

    def count(self) -> int:
        torchmdla.ray.Predictor(network, inputs="x", examples=[{"x": X[:1]}])
        return torch.get_num_threads()


@pytest.mark.sampled(0)
def test_threads_follow_resources(cluster: str) -> None:
    wanted = {0: 1, 0.5: 1, 1.5: 2}
    actors = [ray.remote(Threads).options(num_cpus=cpus).remote() for cpus in wanted]
    assert ray.get([actor.count.remote() for actor in actors]) == list(wanted.values())


def counted(model: str) -> dict[str, float]:
    """Return the metrics of a model as Prometheus would collect them, summed over actors."""
    prometheus = pytest.importorskip("prometheus_client.parser")
    port = ray.nodes()[0]["MetricsExportPort"]
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    sums: Counter[str] = Counter()
    for family in prometheus.text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model") == model and not sample.name.endswith("_bucket"):
                sums[sample.name.removeprefix("ray_torchmdla_")] += sample.value
    return dict(sums)


@pytest.mark.sampled(0)
def test_metrics_and_errors_of_an_actor(cluster: str) -> None:
    actor = ray.remote(torchmdla.ray.Predictor).options(num_cpus=0.5).remote(
        network, inputs="x", examples=[{"x": X[:1]}], batch_size=8, name="measured"
    )  # fmt: skip
    call = actor.__getattr__("__call__").remote
    for rows in (8, 8, 5):
        ray.get(call({"x": X[:rows]}))
    wanted = {"batches_total": 3, "rows_total": 21, "batch_seconds_count": 3}
    while not all(counted("measured").get(name, 0) >= count for name, count in wanted.items()):
        time.sleep(0.2)
    metrics = counted("measured")
    assert {name: metrics[name] for name in wanted} == wanted
    assert metrics["compiled_calls_total"] >= 3
    assert metrics["specialisations_total"] == 4  # for 8, 3 and 1 rows, and for any number of rows
    assert "fallbacks_total" not in metrics
    with pytest.raises(ValueError, match="batch: unknown column 'x'"):
        ray.get(call({"y": X}))


@pytest.mark.sampled(0)
def test_a_file_that_is_not_there(cluster: str) -> None:
    actor = ray.remote(torchmdla.ray.Predictor).options(num_cpus=0.5).remote("nowhere.pt", inputs="x")
    with pytest.raises(ray.exceptions.RayActorError, match=r"no model at nowhere.pt on node"):
        ray.get(actor.__getattr__("__call__").remote({"x": X}))


# --- the examples ------------------------------------------------------------------------------------------------


def started(*command: object, address: str, errors: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a Python program that uses the cluster at ``address``."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=errors, text=True,
    )  # fmt: skip


def finished(script: str, *arguments: object, address: str) -> list[str]:
    """Run an example and return its output lines that start with a digit. Ray's warnings are left out."""
    process = started(EXAMPLES / script, *arguments, address=address)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return [line for line in output.splitlines() if line[:1].isdigit()]


# Run the script and kill its driver when the third file arrives. Tasks and actors continue to run.
KILLED = """
import os, runpy, signal, sys

sys.argv = sys.argv[1:]
names = runpy.run_path(sys.argv[0])
add, added = names["Results"].add, []


def add_and_die(results, file):
    if len(added) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    added.append(file)
    add(results, file)


names["Results"].add = add_and_die
names["main"]()
"""


@pytest.mark.sampled(0)
def test_a_run_that_is_killed_goes_on(cluster: str, tmp_path: Path) -> None:
    rows, per_file = 300, 20
    spec = MODELS["mlp"].reduced()
    (x,) = spec.inputs(batch=rows)
    keys = [f"row {row}" for row in range(rows)]
    pq.write_table(pa.table({"key": keys, "x": list(x.numpy())}), tmp_path / "rows.parquet")
    arguments = (
        tmp_path / "rows.parquet", tmp_path / "results", "--id", "key", "--rows-per-file", per_file, "--batch-size", 16,
    )  # fmt: skip

    process = started("-c", KILLED, EXAMPLES / "batch_inference.py", *arguments, address=cluster)
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, errors
    assert len(list((tmp_path / "results").glob("*.parquet"))) == 2
    done = len(pq.read_table(tmp_path / "results"))
    assert 0 < done < rows

    lines = finished("batch_inference.py", *arguments, address=cluster)
    assert lines[0] == f"{rows} rows, {done} of them done before"
    assert sum(int(line.split()[0]) for line in lines if line.endswith(" more")) == rows - done
    assert lines[-1] == f"{rows} rows in {tmp_path / 'results'}"
    table = pq.read_table(tmp_path / "results")
    assert Counter(table["id"].to_pylist()) == Counter(keys)
    numbers = torch.tensor([keys.index(key) for key in table["id"].to_pylist()])
    with torch.no_grad():
        expected = spec.build()(x[numbers])
    assert_matches(torch.tensor(table["output"].to_pylist()), expected, layers=spec.layers)
    assert [path.name for path in (tmp_path / "results").glob(".run-*")] == []

    assert finished("batch_inference.py", *arguments, address=cluster) == [
        f"{rows} rows, {rows} of them done before", lines[-1],
    ]  # fmt: skip


WRONG_RUNS = {
    "input": (("nowhere", "results"), "there is no nowhere"),
    "output": ((".", "results"), "the results must not be below the input"),
    "model": (("rows.parquet", "results", "--model", "nowhere.pt"), "no such file, and no such test model"),
    "column": (("rows.parquet", "results", "--inputs", "y"), "has no column 'y'; it has id, x"),
    "ids": (("rows.parquet", "results", "--id", "x"), "ids must be there and unique, and 1 are not"),
    "other results": (("rows.parquet", "of_another"), "of_another has results of another run (model)"),
    "two runs": (("rows.parquet", "locked"), "another run is writing to locked"),
}


@pytest.mark.parametrize("case", WRONG_RUNS)
def test_wrong_runs(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = WRONG_RUNS[case]
    pq.write_table(pa.table({"id": [1, 2], "x": [0.5, 0.5]}), tmp_path / "rows.parquet")
    (tmp_path / "of_another").mkdir()
    run = {"model": "lstm", "id": "id", "inputs": ["x"], "size": 64}
    (tmp_path / "of_another" / ".run.json").write_text(json.dumps(run))
    (tmp_path / "locked").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["batch_inference.py", *arguments])
    main = runpy.run_path(str(EXAMPLES / "batch_inference.py"))["main"]
    with open(tmp_path / "locked" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit) as stopped:
            main()
    assert message in f"{stopped.value} {capsys.readouterr().err}"


@pytest.mark.sampled(0)
def test_actors_leave_a_cpu_to_tasks(cluster: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "x": [0.5, 0.5]}), tmp_path / "rows.parquet")
    arguments = tmp_path / "rows.parquet", tmp_path / "results", "--actors", 2
    process = started(EXAMPLES / "batch_inference.py", *arguments, address=cluster)
    errors = process.communicate()[1]
    assert process.returncode == 1
    assert "2 actors of 1 CPUs leave none of the cluster's 2 to tasks that read and write" in errors


@pytest.mark.sampled(0)
def test_images(cluster: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    (tmp_path / "images" / "more").mkdir(parents=True)
    names = [f"{'more/' if number % 2 else ''}{number}.png" for number in range(6)]
    for number, name in enumerate(names):
        pixels = generator.integers(0, 256, (40 + number, 50, 3), dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / "images" / name)
    (tmp_path / "images" / "no image.txt").write_text("")
    finished("batch_inference.py", tmp_path / "images", tmp_path / "results", "--batch-size", 4, address=cluster)
    rows = {row["id"]: row for row in pq.read_table(tmp_path / "results").to_pylist()}
    assert sorted(rows) == sorted(names)
    spec = MODELS["resnet18"].reduced()
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    for name in names:
        pixels = np.array(image.open(tmp_path / "images" / name).resize((64, 64), resample=image.BILINEAR))
        x = (torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 - mean) / deviation
        with torch.no_grad():
            score, best = torch.softmax(spec.build()(x[None]), 1).max(1)
        assert rows[name]["class"] == best.item()
        assert_matches(rows[name]["score"], score.item(), layers=spec.layers)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answer(url: str, body: bytes | None = None) -> Any:
    try:
        return json.loads(urllib.request.urlopen(url, body).read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


def body_of(image: Tensor) -> bytes:
    file = io.BytesIO()
    np.save(file, image.numpy())
    return file.getvalue()


def image_classifier() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def server(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the example server, which serves :func:`image_classifier`."""
    folder = tmp_path_factory.mktemp("server")
    torch.jit.save(torch.jit.trace(image_classifier(), torch.zeros(1, 3, 64, 64)), folder / "model.pt")
    port = free_port()
    command = EXAMPLES / "serve_model.py", "--port", port, "--cpus", 0.5, "--model", folder / "model.pt"
    with open(folder / "errors", "w+") as errors, started(*command, address=cluster, errors=errors) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            while "is ready" not in line:
                assert line, (folder / "errors").read_text()
                line = process.stdout.readline()
            yield f"http://127.0.0.1:{port}/"
            process.send_signal(signal.SIGTERM)
            process.communicate()
            assert process.returncode == 0, (folder / "errors").read_text()
        finally:
            process.kill()


@pytest.mark.sampled(0)
def test_requests_that_come_together_are_computed_together(server: str) -> None:
    images = [torch.randn(3, side, side + number % 2) for number, side in enumerate((64, 96, 64, 80) * 6)]
    with ThreadPoolExecutor(len(images)) as clients:
        answers = list(clients.map(lambda image: answer(server, body_of(image)), images))
    model = image_classifier()
    for image, reply in zip(images, answers, strict=True):
        with torch.no_grad():
            score, best = torch.softmax(model(image[None]), 1).max(1)
        assert reply["class"] == best.item()
        assert_matches(reply["score"], score.item(), layers=2)
    status = answer(f"{server}status")
    assert status["requests"] == len(images) > 2 * status["batches"]
    assert status["specialisations"] > 0 and status["fallbacks"] == {}


@pytest.mark.sampled(0)
def test_wrong_requests(server: str) -> None:
    assert answer(server, b"no array") == {"error": "the body is no array as numpy.save writes it"}
    assert "an image is float32[3, height, width], got float32[2]" in answer(server, body_of(torch.zeros(2)))["error"]


def with_threads(results: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return ``results`` and, for each row, the number of threads of its actor."""
    return {**results, "threads": torch.full((len(results["output"]),), torch.get_num_threads())}


@pytest.mark.sampled(0)
def test_a_predictor_is_a_deployment(server: str) -> None:
    """Check a deployment that gets batches from other deployments. It runs beside the example."""
    from ray import serve

    deployment = serve.deployment(torchmdla.ray.Predictor).options(ray_actor_options={"num_cpus": 1.5})
    bound = deployment.bind(network, inputs="x", examples=[{"x": X[:1]}], postprocess=with_threads)
    result = serve.run(bound, name="direct", route_prefix=None).remote({"x": X}).result()
    check(range(len(X)), result["output"])
    assert set(result["threads"]) == {2}
