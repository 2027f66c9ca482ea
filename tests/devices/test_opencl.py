"""Tests of examples/devices/opencl, a device through OpenCL's queues, events and buffers.

All run in child processes, because a driver can end a process. They need a driver, as in Debian's ``pocl-opencl-icd``,
and the loader ``ocl-icd-libopencl1``.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from example_device import THREADS_AND_FORKS, ExampleDevice


def has_driver() -> bool:
    try:
        library = ctypes.CDLL("libOpenCL.so.1")
    except OSError:
        return False
    count = ctypes.c_uint32()
    return library.clGetPlatformIDs(0, None, ctypes.byref(count)) == 0 and count.value > 0


pytestmark = pytest.mark.skipif(not has_driver(), reason="needs the packages pocl-opencl-icd and ocl-icd-libopencl1")

OPENCL = ExampleDevice(
    "opencl",
    """
from opencl_device import OpenclDevice, runtime

torchmdla.devices.register(OpenclDevice())
torchmdla.enable(device="opencl")
""",
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", ["mlp", "resnet18"])
def test_a_model_runs_and_trains(model: str) -> None:
    done = OPENCL.run("-W", "ignore", "run.py", "--small", "--models", model)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    counts = [int(line.split(", ")[-1].split()[0]) for line in lines if "as eager" in line]
    assert len(counts) == 5 and all(counts), lines
    assert lines[-1] == "fallbacks: none"


@pytest.mark.sampled(0)
def test_the_conformance_run() -> None:
    device = "opencl_device:OpenclDevice"
    names = ["--filter", "products.linear", "--filter", "sizes.reduced"]
    done = OPENCL.run("-m", "torchmdla.testing", "--device", device, *names, "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_constants_written_arguments_and_equal_places(tmp_path: Path) -> None:
    OPENCL.check(
        """
        places = torch.tensor([[2, 0, 2, 2]])
        cases = [
            (lambda x, w: torch.ones_like(x) * 2 + x, x, w),
            (lambda x, w: torch.select_scatter(x, w[0], 0, 1) * 2 + x, x, w),
            (lambda x, places: torch.scatter_add(x, 0, places, x[:1, :4].exp()) * 2, x, places),
        ]
        for function, *arguments in cases:
            compiled = torch.jit.trace(function, arguments)
            for _ in range(3):
                assert_matches(compiled(*arguments), function(*arguments))
        assert runtime.counts(0, 2)["downloads"] and not torchmdla.stats().fallbacks, torchmdla.stats().fallbacks
        """,
        tmp_path,
    )


def test_failed_checks_are_errors_of_eager(tmp_path: Path) -> None:
    OPENCL.check(
        """
        from torch import Tensor
        from torch.nn import functional

        def embed(table: Tensor, places: Tensor):
            return functional.embedding(places, table) * 2 + 1

        def index(x: Tensor, places: Tensor):
            return x[places] * 2 + 1

        def compare(x: Tensor, y: Tensor):
            return functional.binary_cross_entropy(x, y) * 2 + 1

        good, unit = torch.tensor([1, 15]), x.sigmoid()
        cases = [
            (embed, (x, good), (x, good + 1)),
            (index, (x, -good), (x, -good - 2)),
            (compare, (unit, unit), (unit + 1, unit)),
        ]
        for function, right, wrong in cases:
            compiled = run(function, *right)
            try:
                function(*wrong)
            except (IndexError, RuntimeError) as error:
                expected = str(error)
            before = runtime.counts(0, 2)["downloads"]
            try:
                compiled(*wrong)
            except (IndexError, RuntimeError) as error:
                assert expected in str(error), error
            else:
                raise AssertionError("no error")
            assert_matches(compiled(*right), function(*right))
            assert runtime.counts(0, 2)["downloads"] > before
        """,
        tmp_path,
    )


def test_results_stay_on_the_device(tmp_path: Path) -> None:
    OPENCL.check(
        """
        def chain(x, w, again: bool):
            first = torch.mm(x, w).relu()
            if again:
                result = torch.mm(first, w).tanh()
            else:
                result = x
            return result

        compiled = run(chain, x, w, True)
        before = runtime.counts(0, 2)
        for _ in range(10):
            assert_matches(compiled(x, w, True), chain(x, w, True))
        counts = {name: count - before[name] for name, count in runtime.counts(0, 2).items()}
        assert counts["resident"] == 10 and counts["downloads"] == 10, counts
        assert not torchmdla.stats().fallbacks
        """,
        tmp_path,
    )


def test_weights_are_uploaded_when_they_change(tmp_path: Path) -> None:
    OPENCL.check(
        """
        model = torch.nn.Linear(16, 16).eval()
        with torch.no_grad():
            compiled = torchmdla.compile(model, x)
            for step in range(3):
                for _ in range(2):
                    before = runtime.counts(0, 2)["uploads"]
                    assert_matches(compiled(x), model(x))
                assert runtime.counts(0, 2)["uploads"] - before == 1, "the input alone"
                model.weight.mul_(0.5)
        """,
        tmp_path,
    )


def test_threads_and_forks(tmp_path: Path) -> None:
    OPENCL.check(THREADS_AND_FORKS, tmp_path)


def test_a_second_device(tmp_path: Path) -> None:
    OPENCL.check(
        """
        torchmdla.enable(device="opencl", index=1)
        def f(x, w):
            return torch.mm(x, w).relu() + 1
        assert_matches(run(f, x, w)(x, w), f(x, w))
        assert runtime.counts(1, 2)["uploads"] and not runtime.counts(0, 2)["uploads"]
        """,
        tmp_path,
        POCL_DEVICES="pthread pthread",
    )


@pytest.mark.parametrize(
    ("options", "message"), [("index=70", "index 70 is not in"), ("streams=0", "streams 0 is not")]
)
def test_options(options: str, message: str, tmp_path: Path) -> None:
    OPENCL.check(
        f"""
        try:
            torchmdla.enable(device="opencl", {options})
        except ValueError as error:
            assert "{message}" in str(error), error
        else:
            raise AssertionError("no error")
        """,
        tmp_path,
    )


def test_a_device_that_is_absent(tmp_path: Path) -> None:
    OPENCL.check(
        """
        torchmdla.enable(device="opencl", index=9)
        def f(x, w):
            return torch.mm(x, w).relu() + 1
        assert_matches(run(f, x, w)(x, w), f(x, w))
        (reason,) = torchmdla.stats().fallbacks
        assert "OpenCL device 9 does not exist" in reason, reason
        """,
        tmp_path,
    )
