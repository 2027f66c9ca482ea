"""``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts``: a cache travels with a model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import output_of, run_python
from torch.compiler._cache import CacheArtifactManager

import torchmdla
from torchmdla.capture.cache_artifacts import GroupArtifact
from torchmdla.compile_service import service

# The process trains a model, then calls it without gradients.
CODE = """
    import json, sys, torch, torchmdla
    from pathlib import Path
    source, written = sys.argv[1:]
    if source:
        print(json.dumps(torch.compiler.load_cache_artifacts(Path(source).read_bytes()).torchmdla_artifacts))
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), torch.randn(5, 8)
    model(x).sum().backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend="torchmdla")
    compiled(x).sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], wanted)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    stats = torchmdla.stats()
    data, info = torch.compiler.save_cache_artifacts()
    Path(written).write_bytes(data)
    print(json.dumps([stats.compiled, stats.cache_hits, stats.memory_hits, sorted(info.torchmdla_artifacts)]))
"""


def run(cache: Path, written: Path, source: Path | None = None) -> Any:
    """Return the counts of a process, whose cache is a folder."""
    lines = output_of(CODE, str(source or ""), str(written), TORCHMDLA_CACHE_DIR=str(cache))
    return json.loads(lines.splitlines()[-1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a file of cache artifacts, and their keys."""
    folder: Path = tmp_path_factory.mktemp("artifacts")
    compiled, hits, _, keys = run(folder / "cache", folder / "data")
    assert (compiled, hits, len(keys)) == (3, 0, 3)  # forward, backward, and forward without gradients
    return folder / "data", keys


def test_empty_cache_is_filled(saved: tuple[Path, list[str]], tmp_path: Path) -> None:
    data, keys = saved
    compiled, hits, known, recorded = run(tmp_path / "cache", tmp_path / "again", data)
    assert (compiled, hits) == (0, 0)
    assert known >= len(keys)
    # Artifacts that the process found are recorded, too.
    assert recorded == keys
    assert run(tmp_path / "other", tmp_path / "fourth", tmp_path / "again")[:2] == [0, 0]
    files = list((tmp_path / "cache").glob("*.artifact"))
    assert sorted(file.stem for file in files) == keys
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    # A third process finds them on disk, and records them.
    compiled, hits, _, recorded = run(tmp_path / "cache", tmp_path / "third")
    assert (compiled, hits, recorded) == (0, len(keys), keys)


@pytest.mark.parametrize(
    "variables", [{"TORCHMDLA_CACHE_SIZE": "0"}, {"TORCHMDLA_CACHE_DIR": "/dev/null"}], ids=["no cache", "unusable"]
)
def test_artifacts_are_used_without_a_disk_cache(
    variables: dict[str, str], saved: tuple[Path, list[str]], tmp_path: Path
) -> None:
    lines = output_of(CODE, str(saved[0]), str(tmp_path / "again"), **variables)
    assert json.loads(lines.splitlines()[-1])[0] == 0


def test_signatures_are_required_of_artifacts(saved: tuple[Path, list[str]], tmp_path: Path) -> None:
    variables = {"TORCHMDLA_CACHE_DIR": str(tmp_path / "cache"), "TORCHMDLA_REQUIRE_SIGNATURE": ""}
    done = run_python(CODE, str(saved[0]), str(tmp_path / "again"), **variables)
    assert "a cache artifact is not used: signatures are required" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0] == len(saved[1])


# Changes of an artifact, and the reason why it is not used.
DAMAGE = {
    "altered": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "whose content does not match its checksum"),
    "shorter": (lambda data: data[:-1], "cut short or extended"),
    "of another kind": (lambda data: b"\x7fELF" + data, "not an artifact"),
}


@pytest.mark.parametrize(("change", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_artifact_is_not_used(change: Any, reason: str) -> None:
    key, content = _artifact()
    service.default_service().forget(key)
    with pytest.warns(RuntimeWarning, match=reason):
        GroupArtifact(key, change(content)).populate_cache()
    assert service.default_service().cache.load(key) is None


def test_artifact_of_another_program_is_not_used() -> None:
    _, content = _artifact()
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.warns(RuntimeWarning, match="the artifact of another program"):
        GroupArtifact(other, content).populate_cache()
    assert service.default_service().cache.load(other) is None


def _artifact() -> tuple[str, bytes]:
    """Return the key and the content of an artifact that this process recorded."""
    with CacheArtifactManager.with_fresh_cache():
        torch._dynamo.reset()
        torch.compile(lambda x: torch.exp(x) + 1, backend="torchmdla")(torch.zeros(3))
        (artifact,) = CacheArtifactManager._new_cache_artifacts["torchmdla"]
    assert torchmdla.stats().specialisations == 1
    return artifact.key, artifact.content


# PyTorch keeps compiled functions with Dynamo's guards: another process does not even trace.
PRECOMPILE = """
    import json, sys, torch, torchmdla
    from pathlib import Path
    from torch._dynamo.utils import counters
    source, written = sys.argv[1:]
    if source:
        torch.compiler.load_cache_artifacts(Path(source).read_bytes())

    def step(x, model):
        return model(x).relu()

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), torch.randn(5, 8)
    result, wanted = torch.compile(step, backend="torchmdla")(x, model), step(x, model)
    torch.testing.assert_close(result, wanted)
    parameters = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(result.sum(), parameters), torch.autograd.grad(wanted.sum(), parameters)
    )
    stats = torchmdla.stats()
    if not source:
        Path(written).write_bytes(torch.compiler.save_cache_artifacts()[0])
    print(json.dumps([counters["stats"]["unique_graphs"], stats.compiled, stats.packaged, stats.recorded_calls]))
"""


def test_precompiled_functions_travel(tmp_path: Path) -> None:
    def run(name: str, source: str) -> list[int]:
        folders = {
            "TORCHMDLA_CACHE_DIR": str(tmp_path / name),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"{name}-torch"),
        }
        # PyTorch warns of each guard that it cannot keep.
        lines = output_of(PRECOMPILE, source, str(tmp_path / "data"), TORCH_CACHING_PRECOMPILE="1", **folders)
        result: list[int] = json.loads(lines.splitlines()[-1])
        return result

    assert run("first", "") == [1, 2, 0, 2]
    assert run("second", str(tmp_path / "data")) == [0, 0, 2, 0]
