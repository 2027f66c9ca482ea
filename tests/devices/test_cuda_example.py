"""Tests of examples/devices/cuda, a device for NVIDIA cards, on the example's emulated card.

What runs kernels does so in child processes, because a wrong kernel can end a process. Where NVIDIA's assembler
``ptxas`` is installed, it checks the PTX.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from example_device import THREADS_AND_FORKS, ExampleDevice
from torch import Tensor

from torchmdla.compiler.mlir import located_text
from torchmdla.compiler.program import Argument, Program, Result
from torchmdla.mlir.function import separate_results, tensor_type_of
from torchmdla.mlir.kinds import kind_of
from torchmdla.mlir.specs import read_inputs

CUDA = ExampleDevice(
    "cuda",
    """
from cuda_device import CudaDevice, runtime

torchmdla.devices.register(CudaDevice())
torchmdla.enable(device="cuda", emulate=True)

def counts():
    return runtime.counts(0, 2, True)
""",
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", ["norms", "mlp"])
def test_a_model_runs_and_trains(model: str) -> None:
    done = CUDA.run("-W", "ignore", "run.py", "--emulate", "--models", model)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sum("as eager" in line for line in lines) == 5
    assert lines[-1] == "fallbacks: none"


@pytest.mark.sampled(0)
def test_the_conformance_run() -> None:
    device = ("--device", "cuda_device:CudaDevice", "--options", "emulate=true")
    done = CUDA.run("-m", "torchmdla.testing", *device, "--filter", "samples.layer_norm", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr


# Values


def test_functions_are_right_in_the_last_place(tmp_path: Path) -> None:
    CUDA.check(
        """
        inf, nan = float("inf"), float("nan")
        special = torch.tensor([0.0, inf, nan, 1.0, 2.0, 0.5, 1e-40, 1e-8, 88.0, 104.0, 7.0, 3.92, 3.94, 1e10, 3.4e38])
        random = torch.randn(200, generator=generator)
        x = torch.cat([special, -special, random * 5, random * 1000, random * 1e20, random * 1e-20])

        def compute(x):
            return (
                torch.exp(x), torch.exp2(x), torch.expm1(x), torch.log(x), torch.log2(x), torch.log10(x),
                torch.log1p(x), torch.sin(x), torch.cos(x), torch.tan(x), torch.tanh(x), torch.erf(x),
                torch.pow(x, 3), torch.pow(x, 2.5), torch.pow(x, -1.75),
            )

        compiled = run(compute, x)
        for result, exact in zip(compiled(x), compute(x.double())):
            expected = exact.float()
            # Floats with the same sign are in the order of their bits.
            places = (result.view(torch.int32).long() - expected.view(torch.int32).long()).abs()
            places[result.isnan() & expected.isnan()] = 0
            worst = places.argmax()
            assert places[worst] <= 1, (x[worst], result[worst], expected[worst])
        assert not torchmdla.stats().fallbacks and counts()["downloads"]
        """,
        tmp_path,
    )


@pytest.mark.sampled(0)
def test_products_by_tensor_cores(tmp_path: Path) -> None:
    CUDA.check(
        """
        def multiply(x, y, z, w):
            return torch.relu(x @ y), x @ z.t(), w @ w.transpose(1, 2) + 1, x.t() @ torch.cat([x, x], 1)

        for dtype in (torch.float16, torch.bfloat16):
            inputs = [torch.randn(shape).to(dtype) for shape in ((64, 96), (96, 32), (48, 96), (2, 16, 32))]
            compiled = torch.jit.trace(multiply, inputs)
            for _ in range(3):
                for result, expected in zip(compiled(*inputs), multiply(*inputs)):
                    assert_matches(result, expected)
        assert not torchmdla.stats().fallbacks and counts()["downloads"]
        """,
        tmp_path,
    )


# The runtime: the emulated driver runs each command as late as it may.


def test_results_and_weights_stay_on_the_card(tmp_path: Path) -> None:
    CUDA.check(
        """
        def chain(x, w, again: bool):
            first = torch.mm(x, w).relu()
            if again:
                result = torch.mm(first, w).tanh()
            else:
                result = x
            return result

        compiled = run(chain, x, w, True)
        before = counts()
        for _ in range(10):
            assert_matches(compiled(x, w, True), chain(x, w, True))
        gained = {name: count - before[name] for name, count in counts().items()}
        assert gained["resident"] == 10 and gained["downloads"] == 10, gained

        model = torch.nn.Linear(16, 16).eval()
        with torch.no_grad():
            compiled = torchmdla.compile(model, x)
            for step in range(3):
                for _ in range(2):
                    before = counts()["uploads"]
                    assert_matches(compiled(x), model(x))
                assert counts()["uploads"] - before == 1, "the input alone"
                model.weight.mul_(0.5)

        torchmdla.enable(device="cuda", index=1, emulate=True)
        def other(x, w):
            return torch.mm(x, w).relu() + 1
        assert_matches(run(other, x, w)(x, w), other(x, w))
        assert runtime.counts(1, 2, True)["uploads"]
        assert not torchmdla.stats().fallbacks
        """,
        tmp_path,
    )


def test_threads_and_forks(tmp_path: Path) -> None:
    CUDA.check(THREADS_AND_FORKS, tmp_path)


def test_kernels_that_the_driver_refuses(tmp_path: Path) -> None:
    CUDA.check(
        """
        from cuda_device.program import DeviceProgram, Step
        from torchmdla.compiler.artifact import Artifact, Manifest

        code = (8).to_bytes(8, "little") + b"not code"
        program = DeviceProgram(0, code, (), (Step("k0", 1, ()),), 0, (), b"")
        try:
            runtime.load(Artifact(program.to_bytes(), Manifest("", "cuda_entry", (), (), 0)), 2, True)
        except torchmdla.CompileError as error:
            assert "the driver refuses the kernels" in str(error), error
            assert "cuModuleLoadDataEx: invalid image (error 200)\\n" in str(error), error
        else:
            raise AssertionError("no error")
        """,
        tmp_path,
    )


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a card")
def test_machines_without_a_driver(tmp_path: Path) -> None:
    CUDA.check(
        """
        torchmdla.enable(device="cuda")
        def f(x, w):
            return torch.mm(x, w).relu() + 1
        assert_matches(run(f, x, w)(x, w), f(x, w))
        (reason,) = torchmdla.stats().fallbacks
        assert "the cuda device is not available: libcuda.so.1: " in reason, reason
        assert "install NVIDIA's driver" in reason, reason
        """,
        tmp_path,
    )


@pytest.mark.parametrize("source", ["runtime.c", "emulator.c"])
def test_sources_compile_without_warnings(source: str, tmp_path: Path) -> None:
    command = [
        "cc",
        "-O2",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        tmp_path / "library.so",
    ]
    done = subprocess.run([*command, CUDA.folder / "cuda_device" / source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# The code


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(CUDA.folder))
    for name in [name for name in sys.modules if name.startswith("cuda_device")]:
        monkeypatch.delitem(sys.modules, name)
    from cuda_device import CudaDevice

    return CudaDevice()


def ptx_of(device: Any, function: Callable[..., Any], *inputs: Tensor) -> str:
    from cuda_device.program import DeviceProgram

    captured = kind_of(function).capture(function, read_inputs(inputs, None))
    separate_results(captured)
    arguments = [Argument("input", *tensor_type_of(kind)) for kind in captured.signature.inputs]
    results = [Result(*tensor_type_of(kind)) for kind in captured.signature.results]
    program = Program(located_text(captured.module), tuple(arguments), tuple(results), device.target())
    return DeviceProgram.from_bytes(device.lower(program).object_code).code.decode()


def assembles(ptx: str, tmp_path: Path) -> bool:
    assembler = shutil.which("ptxas")
    if assembler is None:
        return True
    (tmp_path / "kernels.ptx").write_text(ptx)
    command = [assembler, "-arch=sm_80", "-o", tmp_path / "kernels.cubin", tmp_path / "kernels.ptx"]
    return subprocess.run(command, check=False).returncode == 0


def test_reductions_use_warps(device: Any, tmp_path: Path) -> None:
    ptx = ptx_of(device, lambda x: torch.softmax(x.sin(), -1), torch.randn(4, 200))
    assert ".target sm_80" in ptx and ".visible .entry k0(" in ptx
    assert ".extern" not in ptx and "call" not in ptx, "a kernel needs a function"
    assert ptx.count("shfl.sync.bfly.b32") == 2 * 5, "a maximum and a sum, in steps of 16, 8, 4, 2 and 1"
    assert assembles(ptx, tmp_path)


@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [(torch.float16, "row.col.m16n16k16.f32.f32"), (torch.bfloat16, "row.col.m16n16k16.f32.bf16.bf16.f32")],
)
def test_products_use_tensor_cores(device: Any, dtype: torch.dtype, instruction: str, tmp_path: Path) -> None:
    x, y = torch.randn(32, 64).to(dtype), torch.randn(16, 64).to(dtype)
    ptx = ptx_of(device, lambda x, y: x @ y.t(), x, y)
    assert f"wmma.mma.sync.aligned.{instruction}" in ptx
    assert set(re.findall(r"wmma\.load\.[abc]\.sync\.aligned\.(\w+)", ptx)) == {"row", "col"}
    assert assembles(ptx, tmp_path)


def test_products_of_other_sizes_are_loops(device: Any) -> None:
    x, y = torch.randn(30, 64).half(), torch.randn(64, 16).half()
    ptx = ptx_of(device, lambda x, y: x @ y, x, y)
    assert "wmma" not in ptx and "fma.rn.f32" in ptx


@pytest.mark.parametrize(
    ("options", "message"), [({"index": 70}, "index 70 is not in"), ({"streams": 0}, "streams 0 is not")]
)
def test_options(device: Any, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device.configure(**options)


def test_memory_is_shared_by_buffers_that_are_not_needed_at_the_same_time(device: Any) -> None:
    from cuda_device.program import Slot, Step, place_buffers

    slots = [Slot("argument", 100), *(Slot("temporary", 300) for _ in range(3)), Slot("result", 100)]
    steps = [Step("k0", 1, (0, 1)), Step("k1", 1, (1, 2)), Step("k2", 1, (2, 3)), Step("k3", 1, (3, 4))]
    placed, size = place_buffers(slots, steps)
    ranges = [(slot.offset, slot.offset + slot.bytes) for slot in placed]
    for step in steps[:3]:
        first, second = (ranges[place] for place in step.places)
        assert first[1] <= second[0] or second[1] <= first[0]
    assert size < sum(slot.bytes for slot in slots)
    assert dataclasses.replace(placed[3], offset=0) == slots[3]
