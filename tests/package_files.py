"""Packages for tests that damage and rewrite them, and their results in a separate process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from child_process import run_python, run_script

import torchmdla
from torchmdla.packages import format

INDEX, TARGET = format.INDEX, format.record_of("native")


class Classifier(torch.nn.Module):
    """Small model."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.second = torch.nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.relu(self.first(x))), 1)


def make_package(path: Path, width: int = 16, sizes: Sequence[int] = (2,), **options: object) -> Path:
    """Save a package of a small model for these batch sizes, and return its path."""
    torch.manual_seed(width)
    torchmdla.save(Classifier(width).eval(), path, [torch.randn(size, 8) for size in sizes], **options)  # type: ignore[arg-type]
    return path


def records(path: Path) -> dict[str, bytes]:
    """Return a package's records by torchmdla's names."""
    with zipfile.ZipFile(path) as archive:
        named = {name.partition("/extra/")[2]: name for name in archive.namelist() if "/extra/torchmdla/" in name}
        return {known: archive.read(name) for known, name in named.items()}


def rewrite(path: Path, out: Path, replaced: Mapping[str, bytes | None], twice: Iterable[str] = ()) -> Path:
    """Write an intact archive with other records of the package, and return its path.

    A value of None removes a record. Those of ``twice`` are contained twice, first with the old content.
    """
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(out, "w") as written:
        folder = archive.namelist()[0].partition("/")[0]
        left = dict(replaced)
        for info in archive.infolist():
            known = info.filename.partition("/extra/")[2]
            content = left.pop(known, None) if known in replaced else archive.read(info)
            if known in twice:
                written.writestr(zipfile.ZipInfo(info.filename), archive.read(info))
            if content is not None:
                written.writestr(zipfile.ZipInfo(info.filename), content)
        for known, content in left.items():
            if content is not None:
                written.writestr(zipfile.ZipInfo(f"{folder}/extra/{known}"), content)
    out.chmod(0o644)
    return out


def sealed(content: bytes, features: Sequence[str] = (), name: str = "native") -> dict[str, bytes]:
    """Return the records of a package with one target. Its seals and digests are right for any ``content``."""
    block = format._TARGET.seal({}, content)
    return {INDEX: sealed_index([(name, features, hashlib.sha256(block).digest())]), TARGET: block}


def sealed_index(targets: Sequence[tuple[str, Sequence[str], bytes]]) -> bytes:
    writer = format.FieldWriter()
    writer.integer(len(targets))
    for name, features, digest in targets:
        writer.text(name)
        writer.list(features, writer.text)
        writer.raw(digest)
    return format._INDEX.seal({"targets": [], "versions": {}}, writer.getvalue())


def content_of(block: bytes) -> bytes:
    """Return the sealed content of a target's block."""
    result: bytes = format._TARGET.open(block, lambda _, content: content)
    return result


@dataclass(frozen=True)
class Found:
    """Result of loading a file.

    Attributes:
        error: the error of loading it, or an empty string if it was loaded.
        refused: the reasons why packages in it, or parts of one, were refused.
        packages: the number of accepted packages.
        matches: whether the program returned eager's values, or raised eager's error.
        peak: the growth of the process's peak memory in bytes, mapped or not, since it began with these files.
    """

    error: str
    refused: list[str]
    packages: int
    matches: bool
    peak: int


_LOAD = """
    import json, re, sys
    from pathlib import Path
    import torch, torchmdla

    def peak():
        return 1024 * int(re.search(r"VmPeak:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

    def called(program):
        # Or the class of what it raises: damage may have left a program that PyTorch reads and cannot run.
        try:
            return program(x)
        except Exception as raised:
            return type(raised)

    def same(one, wanted):
        return one is wanted or torch.is_tensor(one) and torch.allclose(one, wanted, 1e-3, 1e-5, equal_nan=True)

    torch.set_num_threads(1)
    load = torchmdla.load if sys.argv[3:] == ["ready"] else torch.jit.load
    paths = Path(sys.argv[1]).read_text().splitlines()
    with torch.no_grad():
        # What a process allocates once is no file's.
        x = torch.load(sys.argv[2])
        torchmdla.compile(torch.nn.Linear(8, 8).eval(), x)(x)
    before = peak()
    for path in paths:
        print(json.dumps(path), flush=True)
        torchmdla.reset_stats()
        error, matches = "", True
        try:
            program = load(path)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"[:300]
        else:
            with torch.no_grad():
                results = [called(program) for _ in range(2)]
                with torchmdla.enabled(False):
                    wanted = called(program)
                matches = all(same(one, wanted) for one in results)
        counts = torchmdla._C.statistics()
        found = [error, list(counts["refused"]), sum(counts["packages"].values()), matches, peak() - before]
        print(json.dumps(found), flush=True)
"""


def load_all(paths: Sequence[Path], example: Path, *, ready: bool = False, **environment: str) -> dict[Path, Found]:
    """Load and run these files in one process, one after another, and return the results.

    Args:
        paths: TorchScript archives.
        example: the file of an input (``torch.save``).
        ready: load them by ``torchmdla.load``.
        environment: variables of the process.

    Raises:
        AssertionError: the process ended. The message names the current file.
    """
    listed = example.with_suffix(".paths")
    listed.write_text("\n".join(map(str, paths)))
    run = run_python(_LOAD, str(listed), str(example), *["ready"] * ready, **environment)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    ended_at = lines[-1] if lines and len(lines) % 2 else "the start"
    assert run.returncode == 0, f"the process ended with {run.returncode} at {ended_at}: {run.stderr[-2000:]}"
    return {Path(path): Found(*fields) for path, fields in zip(lines[::2], lines[1::2], strict=True)}


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of ``python -m torchmdla``."""
    return run_script("-m", "torchmdla", *arguments)


def write_example(path: Path) -> Path:
    """Write an input of :func:`make_package`'s model, and return the path."""
    torch.save(torch.linspace(-1, 1, 16).reshape(2, 8), path)
    return path
