"""Tests of the mdla device's calls, on a fake library with all possible faults and on the emulator."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from child_process import run_python, run_script
from forking import in_child
from graphs import groups_of
from in_threads import in_threads
from torch import Tensor, nn

import torchmdla
from torchmdla import DeviceError
from torchmdla.devices.mdla import compiling, runtime_library
from torchmdla.devices.mdla.network import Network
from torchmdla.devices.mdla.options import Options, library_path
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

pytest.importorskip("onnx")

_SOURCE = Path(__file__).with_name("fake_library.c")
_FAULT = "TORCHMDLA_FAKE_FAULT"

pytestmark = pytest.mark.skipif(not runtime_library.PATH.exists(), reason="torchmdla was built without the mdla device")


def _built(folder: Path, name: str, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    path = folder / name
    subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", str(path), str(_SOURCE), "-lpthread"], check=True)
    return path


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(tmp_path_factory.mktemp("mdla"), "libfake.so")


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the fault of the library. Earlier compiled programs are forgotten."""
    compiling.forget()

    def choose(name: str) -> None:
        monkeypatch.setenv(_FAULT, name)

    return choose


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the arguments of all compiles."""
    seen: list[Any] = []
    compile_ = compiling._compile
    monkeypatch.setattr(compiling, "_compile", lambda *arguments: seen.append(arguments) or compile_(*arguments))
    return seen


def _squashed(x: Tensor) -> Tensor:
    return torch.tanh(x) * x


def _ready(*sizes: int) -> tuple[Any, Tensor]:
    """Return a traced function with one group, which the next call compiles, and its input."""
    x = torch.randn(sizes or (2, 3))
    traced = torch.jit.trace(_squashed, (x,), check_trace=False)
    traced(x)
    traced(x)
    return traced, x


# Results of the library


def test_a_group_runs_on_the_library(fake: Path) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True)
    library = ctypes.CDLL(str(fake))
    traced, x = _ready(3, 5)
    before = library.fake_runs()
    assert torch.equal(traced(x), x)  # The fake library returns its inputs.
    assert library.fake_runs() == before + 1
    assert torchmdla.stats().fallbacks == {}


def test_groups_have_the_label(fake: Path) -> None:
    torchmdla.enable(device="mdla", library=fake)
    traced, x = _ready()
    assert "mdla::CompilationGroup" in str(torchmdla.graph_for(traced, x))


def test_the_library_of_the_environment(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMDLA_MDLA_LIBRARY", str(fake))
    torchmdla.enable(device="mdla", strict=True)
    traced, x = _ready(4)
    assert torch.equal(traced(x), x)


def test_a_context_goes_with_its_weights(fake: Path) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True)
    library = ctypes.CDLL(str(fake))
    model = nn.Linear(7, 7).eval()
    x = torch.randn(2, 7)
    with torch.no_grad():
        traced = torch.jit.trace(model, (x,), check_trace=False)
        for _ in range(4):
            traced(x)
        live = library.fake_live()
        for _ in range(3):
            model.weight.add_(1)
            traced(x)
    # The first context of a card is kept while others are linked to it.
    assert live <= library.fake_live() <= live + 1


def test_several_groups_share_a_card(fake: Path) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True, debug="s")
    library = ctypes.CDLL(str(fake))
    first, x = _ready(3, 8)
    first(x)
    linked = library.fake_linked()
    second, y = _ready(3, 9)
    second(y)
    assert library.fake_linked() == linked + 1


def test_equal_models_are_compiled_once(fake: Path, jobs: list[Any]) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True)
    compiling.forget()
    model = nn.Linear(6, 6).eval()
    twin = nn.Linear(6, 6).eval()
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 6)
    with torch.no_grad():
        for module in (model, twin):
            assert torch.equal(torchmdla.compile(module, x)(x), x)
    assert len(jobs) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_leaves_the_parents_binaries(fake: Path) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True)
    traced, x = _ready(3, 15)
    traced(x)
    folder = compiling._folder()

    def child() -> bool:
        with contextlib.suppress(BaseException):
            compiling._remove(folder, os.getppid())
        return compiling._folder() != folder

    assert in_child(child) == 0
    assert any(folder.iterdir())


def test_new_weights_are_loaded(fake: Path, jobs: list[Any]) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True)
    model = nn.Linear(5, 5).eval()
    x = torch.randn(2, 5)
    with torch.no_grad():
        traced = torch.jit.trace(model, (x,), check_trace=False)
        for _ in range(4):
            traced(x)
        count = len(jobs)
        model.weight.add_(1)
        traced(x)
        assert len(jobs) == count + 1


def test_any_number_of_threads(fake: Path) -> None:
    """Check for deadlocks: packing takes the GIL while threads that hold it wait for the packed tensors."""
    torchmdla.enable(device="mdla", library=fake, strict=True)
    functions = [_ready(2, 20 + number % 2) for number in range(6)]

    def work(number: int) -> None:
        traced, x = functions[number]
        for _ in range(20):
            result = traced(x)
            # The result is eager's while another thread compiles.
            assert torch.equal(result, x) or torch.equal(result, _squashed(x))
        assert torch.equal(traced(x), x)

    assert not in_threads(len(functions), work)


# Faults


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("create", "ie_create"),
        ("flag", r"ie_setflag\(nclusters, 2\)"),
        ("version", "ie_getinfo: .* has version 2019.2.0, version 2022.1 is needed"),
        ("compile", "ie_compile: no such operator"),
        ("crash", "ie_compile: the library's process ended: SIGSEGV"),
        ("exit", "ie_compile: the library's process ended: exit status 3"),
        ("no_binary", "ie_compile: the library wrote no binary"),
        ("init", "ie_init: no card"),
        ("outputs", "ie_init: the library has 2 outputs, the group 1"),
        ("sizes", "ie_init: output 0 has 9 elements, the group's 6"),
        ("run", "ie_run: the card does not answer"),
        ("written", "ie_run: the library wrote other sizes"),
    ],
)
def test_a_fault_falls_back_and_strict_raises(name: str, text: str, fault: Any, tmp_path: Path) -> None:
    library = _built(tmp_path, "libfaulty.so")  # A separate copy, because the version of a library is queried once.
    fault(name)
    torchmdla.enable(device="mdla", library=library, clusters=2)
    traced, x = _ready()
    with pytest.warns(RuntimeWarning, match=text):
        assert torch.equal(traced(x), _squashed(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(traced(x), _squashed(x))
    ((reason, count),) = torchmdla.stats().fallbacks.items()
    assert count == 2
    assert text.partition(":")[0].partition("\\")[0] in reason
    torchmdla.enable(device="mdla", library=library, clusters=2, strict=True)
    with pytest.raises(DeviceError, match=text) as raised:
        traced(x)
    assert raised.value.group
    assert raised.value.group in str(raised.value)


def test_after_a_fault_of_a_run_the_next_call_runs_again(fake: Path, fault: Any) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True)
    traced, x = _ready(2, 11)
    traced(x)
    fault("run")
    with pytest.raises(DeviceError):
        traced(x)
    fault("")
    assert torch.equal(traced(x), x)


def test_a_compile_that_does_not_end(fake: Path, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True)
    fault("hang")
    traced, x = _ready(2, 12)
    monkeypatch.setenv("TORCHMDLA_COMPILE_SECONDS", "0.5")
    with pytest.raises(DeviceError, match=r"took more than 0\.5 seconds"):
        traced(x)


def test_a_failed_compile_is_not_tried_again_for_the_same_weights(fake: Path, fault: Any, jobs: list[Any]) -> None:
    torchmdla.enable(device="mdla", library=fake)
    fault("compile")
    traced, x = _ready(2, 13)
    with pytest.warns(RuntimeWarning):
        traced(x)
    for _ in range(3):
        assert torch.equal(traced(x), _squashed(x))
    assert len(jobs) == 1


@pytest.mark.parametrize("name", ["none.so", "text.so"])
def test_a_file_that_is_not_there_or_no_library(name: str, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    torchmdla.enable(device="mdla", library=tmp_path / name, strict=True)
    traced, x = _ready()
    with pytest.raises(DeviceError, match=f"dlopen: .*{re.escape(name)}"):
        traced(x)


def test_a_library_without_a_function(tmp_path: Path) -> None:
    torchmdla.enable(device="mdla", library=_built(tmp_path, "libpart.so", "-DWITHOUT_IE_INIT"), strict=True)
    traced, x = _ready()
    with pytest.raises(DeviceError, match=r"ie_init: .* does not have this function"):
        traced(x)


def test_variable_precision_needs_calibration(fake: Path) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True, precision="variable")
    traced, x = _ready()
    with pytest.raises(DeviceError, match="ie_compile_vfp: precision 'variable' needs calibration inputs"):
        traced(x)


def test_an_op_that_the_device_does_not_take_stays_outside(fake: Path) -> None:
    torchmdla.enable(device="mdla", library=fake, strict=True)
    groups = groups_of(lambda x: (torch.tanh(x) * x).exp(), torch.randn(2, 3))
    assert [node.kind() for node in groups[0].nodes()] == ["aten::tanh", "aten::mul"]


def test_without_onnx_the_error_names_the_package_to_install(fake: Path) -> None:
    """Check the error in a separate process, in which the compiler cannot import the package."""
    program = (
        "import sys; sys.modules['onnx'] = None\n"
        "import torch, torchmdla\n"
        f"torchmdla.enable(device='mdla', library={str(fake)!r}, strict=True)\n"
        "f = torch.jit.trace(lambda x: torch.tanh(x) * x, (torch.ones(2),), check_trace=False)\n"
        "try:\n"
        "    for _ in range(3): f(torch.ones(2))\n"
        "except torchmdla.CompileError as error:\n"
        "    print(error.reason)\n"
    )
    done = run_script("-c", program, TORCHMDLA_COMPILE_IN_PROCESS="1")
    assert "pip install 'torchmdla[mdla]'" in done.stdout


# Options


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"cores": 2}, TypeError, "unknown option 'cores'"),
        ({"clusters": "2"}, TypeError, "'clusters'"),
        ({"clusters": 0}, ValueError, "at least 1"),
        ({"precision": "float8"}, ValueError, "unknown precision 'float8'"),
        ({"batches": "halves"}, ValueError, "unknown value of batches 'halves'"),
        ({"timeout": -1}, ValueError, "'timeout' must be at least 0"),
        ({"headroom": -1}, ValueError, "'headroom' must be at least 0"),
        ({"timeout": "1"}, TypeError, "'timeout'"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        torchmdla.enable(device="mdla", **options)


def test_the_cpu_device_has_no_options() -> None:
    with pytest.raises(TypeError, match="device 'cpu': unknown option 'clusters'"):
        torchmdla.enable(clusters=2)


def test_device_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(DeviceError("ie_run: no", group="g")))
    assert (error.fault, error.group, str(error)) == ("ie_run: no", "g", "ie_run: no (in group g)")


# Asynchronous use


@pytest.fixture
def network(fake: Path) -> Iterator[Network]:
    """Yield a network with one input and one output of four elements."""
    with Network(b"4", [(4,)], [(4,)], Options(library=str(fake))) as instance:
        yield instance


def _numbers(value: float) -> Any:
    return np.full(4, value, dtype=np.float32)


def test_results_come_in_the_order_of_the_inputs(network: Network) -> None:
    for number in range(3):
        network.submit(_numbers(number), user=number + 1)
    for number in range(3):
        (result,), user = network.collect()
        assert result.tolist() == [number] * 4
        assert user == number + 1


def test_a_run_between_submit_and_collect_is_refused(network: Network) -> None:
    network.submit(_numbers(1))
    with pytest.raises(DeviceError, match="ie_run: results of ie_putinput are outstanding"):
        network.run(_numbers(2))
    network.collect()
    assert network.run(_numbers(2))[0].tolist() == [2] * 4
    assert network.run(_numbers(3), software=True)[0].tolist() == [3] * 4


@pytest.mark.parametrize(("name", "submits"), [("putinput", 1), ("getresult", 0)])
def test_faults_of_asynchronous_calls(name: str, submits: int, network: Network, fault: Any) -> None:
    if not submits:
        network.submit(_numbers(1))
    fault(name)
    with pytest.raises(DeviceError, match=f"ie_{name}: "):
        network.submit(_numbers(1)) if submits else network.collect()
    fault("")
    assert submits or network.collect()[0][0].tolist() == [1] * 4


# Pipelining


def _streamed(fake: Path, items: int = 4, width: int = 6, **options: Any) -> tuple[Any, Tensor]:
    """Return a compiled group whose batch is run item by item, and its input. Groups of equal width share a context."""
    torchmdla.enable(device="mdla", library=fake, batches="items", **options)
    traced, x = _ready(items, width)
    traced(x)
    return traced, x


def test_a_batch_is_many_inferences(fake: Path) -> None:
    traced, x = _streamed(fake, 5, strict=True)
    library = ctypes.CDLL(str(fake))
    runs, puts = library.fake_runs(), library.fake_putinputs()
    for _ in range(3):
        x = torch.randn(5, 6)
        assert torch.equal(traced(x), x)
    assert (library.fake_runs() - runs, library.fake_putinputs() - puts) == (0, 15)


def test_inferences_of_a_batch_overlap(fake: Path, fault: Any) -> None:
    """Check overlap with a library that gives no result before it has two inferences."""
    fault("pair")
    traced, x = _streamed(fake, 3, strict=True)
    assert torch.equal(traced(x), x)


@pytest.mark.parametrize("batches", ["whole", "items"])
def test_calls_of_threads_get_their_own_results(fake: Path, batches: str, fault: Any) -> None:
    fault("slow")
    torchmdla.enable(device="mdla", library=fake, strict=True, batches=batches)
    library = ctypes.CDLL(str(fake))
    functions = [_ready(3, 6)[0], _ready(3, 6)[0], _ready(4, 6)[0]]
    sizes = [3, 3, 4]
    for traced, size in zip(functions, sizes, strict=True):
        traced(torch.ones(size, 6))
    puts = library.fake_putinputs()

    def work(number: int) -> None:
        for turn in range(100):
            which = (number + turn) % 3
            x = torch.full((sizes[which], 6), float(1000 * number + turn))
            assert torch.equal(functions[which](x), x)

    assert not in_threads(6, work)
    assert library.fake_putinputs() > puts


def test_forked_calls_of_one_program(fake: Path, fault: Any) -> None:
    fault("slow")
    torchmdla.enable(device="mdla", library=fake, strict=True)
    squashed, x = _ready(2, 31)
    squashed(x)

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        future = torch.jit.fork(squashed, x)
        other = squashed(y)
        return torch.jit.wait(future), other

    scripted = torch.jit.trace(both, (x, x), check_trace=False)
    library = ctypes.CDLL(str(fake))
    puts = library.fake_putinputs()
    for turn in range(50):
        x, y = torch.full((2, 31), float(turn)), torch.full((2, 31), -1.0 - turn)
        first, other = scripted(x, y)
        if turn > 3:
            assert torch.equal(first, x)
            assert torch.equal(other, y)
    assert library.fake_putinputs() > puts
    assert torchmdla.stats().fallbacks == {}


@pytest.mark.parametrize(
    ("name", "text"), [("putinput", "ie_putinput: no buffer"), ("more", "ie_getresult: the library wrote other sizes")]
)
def test_after_a_fault_of_a_part_the_next_batch_runs(name: str, text: str, fake: Path, fault: Any) -> None:
    traced, x = _streamed(fake)
    fault(name)
    with pytest.warns(RuntimeWarning, match=text):
        assert torch.equal(traced(x), _squashed(x))
    torchmdla.enable(device="mdla", library=fake, batches="items", strict=True)
    with pytest.raises(DeviceError, match=text):
        traced(x)
    fault("")
    assert torch.equal(traced(x), x)


@pytest.mark.parametrize("name", ["taken", "kept"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_part_that_fails_is_the_only_one(name: str, place: int, fake: Path, fault: Any) -> None:
    """Check that late results of a failed call are not given to another call."""
    traced, x = _streamed(fake, strict=True)
    fault(name)
    x = x.abs() + 1
    assert torch.equal(traced(x), x)
    for _ in range(3):
        wrong = x.clone()
        wrong[place] *= -1
        with pytest.raises(DeviceError, match="ie_getresult: a negative number"):
            traced(wrong)
        for _ in range(3):
            x += 1
            assert torch.equal(traced(x), x)


@pytest.mark.parametrize("name", ["taken", "kept"])
def test_a_call_that_fails_leaves_other_threads_their_results(name: str, fake: Path, fault: Any) -> None:
    traced, _ = _streamed(fake, 3)
    fault(name)

    def work(number: int) -> None:
        for turn in range(100):
            x = torch.full((3, 6), float(number * 1000 + turn + 1))
            if number % 2:
                x[turn % 3] *= -1
                assert torch.equal(traced(x), _squashed(x))
            else:
                assert torch.equal(traced(x), x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not in_threads(4, work)
    ((reason, count),) = torchmdla.stats().fallbacks.items()
    assert "a negative number" in reason
    assert count == 200


@pytest.mark.parametrize(
    ("name", "width", "text"),
    [
        ("swapped", 41, "ie_getresult: the results are not in the order of the inputs"),
        ("foreign", 42, "ie_getresult: the results are not in the order of the inputs"),
        ("getresult", 43, "ie_getresult: the card is gone"),
        ("silent", 44, r"ie_getresult: no result within 0\.2 seconds"),
    ],
)
def test_a_network_without_reliable_results_is_lost(name: str, width: int, text: str, fake: Path, fault: Any) -> None:
    """Check that all waiting threads and later calls fall back, and that other networks still run."""
    traced, x = _streamed(fake, width=width, timeout=0.2)
    assert torch.equal(traced(x), x)
    fault(name)

    def falls_back(_: int) -> None:
        assert torch.equal(traced(x), _squashed(x))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not in_threads(4, falls_back)
        fault("")
        falls_back(0)
    ((reason, count),) = torchmdla.stats().fallbacks.items()
    assert re.search(text, reason)
    assert count == 5
    fresh, y = _streamed(fake, 2, width=width, strict=True, timeout=0.2)
    assert torch.equal(fresh(y), y)
    torchmdla.enable(device="mdla", library=fake, batches="items", timeout=0.2, strict=True)
    with pytest.raises(DeviceError, match=text):
        traced(x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_runs_batches(fake: Path) -> None:
    """Check a forked child, which does not have the thread that collects results."""
    traced, x = _streamed(fake, strict=True)
    assert in_child(lambda: torch.equal(traced(x), x)) == 0


def test_inputs_of_other_shapes_are_refused(network: Network) -> None:
    with pytest.raises(ValueError, match="are needed"):
        network.run(np.zeros(5, dtype=np.float32))


def test_information_of_the_library(network: Network) -> None:
    assert network.info("version") == "2022.1.0"
    with pytest.raises(KeyError):
        network.info("nothing of that name")


@pytest.mark.sampled(0)
def test_an_interrupt_reaches_the_program_and_the_compile_is_tried_again(fake: Path) -> None:
    """Check a separate process, which sends itself the signal while the library compiles."""
    program = (
        "import os, signal, threading, time\n"
        "import torch, torchmdla\n"
        f"torchmdla.enable(device='mdla', library={str(fake)!r}, strict=True)\n"
        "x = torch.randn(5)\n"
        "f = torch.jit.trace(lambda x: torch.tanh(x) * x, (x,), check_trace=False)\n"
        "f(x); f(x)\n"
        f"os.environ[{_FAULT!r}] = 'hang'\n"
        "threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    f(x)\n"
        "    time.sleep(60)\n"
        "except (KeyboardInterrupt, torchmdla.DeviceError) as error:\n"
        "    print(type(error).__name__)\n"
        f"del os.environ[{_FAULT!r}]\n"
        "try:\n"
        "    time.sleep(0.1)\n"
        "except KeyboardInterrupt as error:\n"
        "    print(type(error).__name__)\n"
        "print(torch.equal(f(x), x))\n"
    )
    done = run_script("-c", program)
    assert "KeyboardInterrupt" in done.stdout, done.stderr
    assert done.stdout.endswith("True\n"), done.stderr


# The emulator

_EMULATED = ["resnet18", "mobilenet_v2", "unet", "lstm", "mlp"]


@pytest.mark.parametrize("precision", ["float32", "fixed16", "fixed8"])
@pytest.mark.parametrize("name", _EMULATED)
@pytest.mark.sampled(0)
def test_model_on_the_emulator(name: str, precision: str) -> None:
    torchmdla.enable(device="mdla", precision=precision, strict=True)
    spec = MODELS[name].reduced()
    model, inputs = spec.build(), spec.inputs()
    with torch.no_grad():
        traced = torch.jit.trace(model, inputs, check_trace=False)
        for _ in range(3):
            traced(*inputs)
        assert_matches(traced(*inputs), model(*inputs), layers=spec.layers, precision=precision)
    assert torchmdla.stats().fallbacks == {}


class _Upscaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.side = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        grown = torch.nn.functional.leaky_relu(self.norm(self.up(x)), 0.1)
        other = torch.nn.functional.interpolate(self.side(x), size=grown.shape[2:], mode="bilinear")
        return torch.softmax(torch.cat([grown, grown + other], 1), 1)


_SMALL: dict[str, tuple[Any, tuple[int, ...]]] = {
    "transposed, bilinear, softmax": (_Upscaled, (1, 3, 6, 7)),
    "pools": (
        lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True), nn.ReLU6()),
        (2, 3, 17, 18),
    ),
    "three dimensions": (lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.Tanh(), nn.MaxPool3d(2)), (1, 2, 6, 7, 8)),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(4, 6, 5, dilation=2), nn.Sigmoid()), (2, 4, 20)),
    "channels last": (lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), (1, 4, 8, 9)),
}


@pytest.mark.parametrize("name", _SMALL)
def test_small_model_on_the_emulator(name: str) -> None:
    make, sizes = _SMALL[name]
    torchmdla.enable(device="mdla", precision="float32", strict=True)
    model, x = make().eval(), torch.randn(sizes)
    if name == "channels last":
        x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        compiled = torchmdla.compile(model, x)
        assert_matches(compiled(x), model(x), layers=4)
    assert torchmdla.stats().fallbacks == {}


def test_the_emulators_default_is_fixed16() -> None:
    """Check that 0.001 is rounded to zero, because the step of fixed16 is 1/256."""
    torchmdla.enable(device="mdla", strict=True)
    x = torch.full((2, 3), 0.001)
    traced = torch.jit.trace(_squashed, (x,), check_trace=False)
    for _ in range(3):
        result = traced(x)
    assert torch.equal(result, torch.zeros(2, 3))


def test_options_that_the_emulator_refuses() -> None:
    torchmdla.enable(device="mdla", options="?", strict=True)
    traced, x = _ready(2, 14)
    with pytest.raises(DeviceError, match=r"^ie_setflag\(options, \?\): .* \(in group "):
        traced(x)


@pytest.mark.sampled(0)
def test_a_library_that_the_loader_finds(tmp_path: Path) -> None:
    """Check a library that the dynamic loader finds by the name of the vendor's library."""
    shutil.copy(library_path(), tmp_path / "libmicrondla.so")
    run = """
        import torch, torchmdla
        torchmdla.enable(device="mdla", library="libmicrondla.so", precision="float32", strict=True)
        x = torch.randn(2, 3, 8, 8)
        model = torch.nn.Conv2d(3, 4, 3).eval()
        with torch.no_grad():
            torch.testing.assert_close(torchmdla.compile(model, x)(x), model(x), rtol=1e-4, atol=1e-4)
        with open("/proc/self/maps") as maps:
            print("libmicrondla.so" in maps.read(), torchmdla.stats().fallbacks)
    """
    done = run_python(run, LD_LIBRARY_PATH=str(tmp_path))
    assert done.stdout == "True {}\n", done.stderr
    assert "libmicrondla.so: cannot open shared object file" in run_python(run).stderr
