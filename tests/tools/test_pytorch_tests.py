"""Tests of the command that runs PyTorch's tests of accelerators, on a small file in their style."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchmdla.testing.pytorch_tests import listed
from torchmdla.testing.pytorch_tests.__main__ import main
from torchmdla.testing.pytorch_tests.runs import sample

_FILE = """
import enum
import os
import time

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCPU
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests


class Classification(enum.Enum):
    ACCELERATOR = 1
    GENERIC = 2


class TestSmall(TestCase):
    hw_classification = Classification.ACCELERATOR

    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        x = torch.arange(4, device=device, dtype=dtype)
        self.assertEqual(x.device.type, self.device_type)
        self.assertEqual((x + x).sum(), torch.tensor(12, device=device, dtype=dtype))

    @parametrize("number", [1, 2, 3])
    def test_number(self, device, number):
        self.assertEqual(torch.tensor(number, device=device).item(), number)

    @onlyCPU
    def test_of_the_cpu(self, device):
        pass

    def test_that_the_cpu_fails(self, device):
        self.fail()

    def test_that_needs_the_cpu(self, device):
        self.assertEqual(torch.ones(1, device=device).device.type, "cpu")

    def test_crash(self, device):
        if self.device_type != "cpu":
            os.abort()

    def test_wait(self, device):
        if self.device_type != "cpu":
            time.sleep(1000)


class TestFramework(TestCase):
    hw_classification = Classification.GENERIC

    def test_it(self, device):
        pass


instantiate_device_type_tests(TestSmall, globals())
instantiate_device_type_tests(TestFramework, globals())

if __name__ == "__main__":
    run_tests()
"""

# Status on the CPU and on acap; None: the test does not run on acap.
_STATUSES = {
    "test_sum_float32": ("ok", "ok"),
    "test_sum_int64": ("ok", "ok"),
    "test_number_number_1": ("ok", "ok"),
    "test_number_number_2": ("ok", "ok"),
    "test_number_number_3": ("ok", "ok"),
    "test_of_the_cpu": ("ok", "skipped"),
    "test_that_the_cpu_fails": ("failed", None),
    "test_that_needs_the_cpu": ("ok", "failed"),
    "test_crash": ("ok", "crash"),
    "test_wait": ("ok", "time-out"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of tests, of which one file is for devices."""
    (tmp_path / "test_small.py").write_text(_FILE)
    (tmp_path / "test_without_devices.py").write_text("raise SystemExit(1)")
    return tmp_path


def test_statuses_and_resuming(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "results.jsonl"
    command = [str(folder), "--json", str(file), "--timeout", "30"]
    assert main(command) == 1
    lines = file.read_text().splitlines()
    results = [json.loads(line) for line in lines]
    seen = {(result["test"], result["device"]): result["status"] for result in results}
    assert len(seen) == len(results)
    assert seen == {
        (f"TestSmall.{name}", device): status
        for name, statuses in _STATUSES.items()
        for device, status in zip(("cpu", "acap"), statuses, strict=True)
        if status
    }
    details = {result["test"]: result["detail"] for result in results if result["status"] == "crash"}
    assert details == {"TestSmall.test_crash": "SIGABRT"}
    table = capsys.readouterr().out
    assert "! crash    test_small.py: TestSmall.test_crash: SIGABRT" in table
    assert all(cell in table for cell in ("62.50", "test_small.py"))

    file.write_text("\n".join(line for line in lines if "test_sum" not in line and "test_wait" not in line) + "\n")
    assert main([*command, "--resume", "--filter", "test_sum"]) == 1
    again = [json.loads(line)["test"] for line in file.read_text().splitlines()[len(lines) - 6 :]]
    assert sorted(again) == ["TestSmall.test_sum_float32"] * 2 + ["TestSmall.test_sum_int64"] * 2


def test_a_file_that_cannot_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_of_another_version.py").write_text("from torch import name_of_another_version")
    assert main([str(tmp_path), "--file", "test_of_another_version.py"]) == 1
    assert "cannot be imported: ImportError: cannot import name 'name_of_another_version'" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--file", "test_missing.py"], ["--resume"]])
def test_bad_command_lines(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), *arguments])
    assert str(tmp_path) in (error := capsys.readouterr().err) or "--json" in error


def test_samples_are_of_each_group() -> None:
    tests = {f"T.test_{name}_{dtype}": f"T.{name}" for name in ("add", "mul") for dtype in range(5)}
    chosen = sample(tests, 2)
    assert [tests[name] for name in chosen] == ["T.add"] * 2 + ["T.mul"] * 2
    assert sample(tests, None) == list(tests)
    assert sample(dict(reversed(tests.items())), 2) == list(reversed(chosen))


def test_listed_names_cover_dtypes_and_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed, "LISTED", {"TestViewOps.test_ravel": "because"})
    assert listed.reason("TestViewOps.test_ravel_float32") == listed.reason("TestViewOps.test_ravel") == "because"
    assert not listed.reason("TestViewOps.test_ravelled") and not listed.reason("TestOther.test_ravel")
