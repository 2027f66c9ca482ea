"""Weights in mapped files: they leave the resident set, can be read at any time, and writes to them are noticed."""

from __future__ import annotations

import copy
import ctypes
import io
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from forking import in_child
from in_threads import in_threads
from torch import Tensor, nn

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.skipif(not os.path.exists("/proc/self/pagemap"), reason="the system does not report written pages"),
]

WIDTH = 1024
MIB = 1 << 20


@pytest.fixture(autouse=True)
def packages_off_afterwards() -> Iterator[None]:
    """Turn packages off after a test, so that groups of other tests in this process compile."""
    yield
    _C.set_packages(False)


class Lookup(nn.Module):
    """Weights that are packed (8 MiB), and a table of which a call reads some rows."""

    ROWS = 4096

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(self.ROWS, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.layers(self.table(tokens)))


def lookup() -> tuple[nn.Module, Tensor]:
    return Lookup().eval(), torch.randint(Lookup.ROWS, (32,))


def convolution() -> tuple[nn.Module, Tensor]:
    """Return convolutions with norms, which freezing folds into new weights."""
    layers = [nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU()) for _ in range(2)]
    return nn.Sequential(*layers).eval(), torch.randn(1, 256, 8, 8)


def compiled(module: nn.Module, x: Tensor, _: Path) -> nn.Module:
    return torchmdla.compile(module, x, map_weights=True)


def loaded(module: nn.Module, x: Tensor, folder: Path, freeze: bool = True, pack_weights: bool = True) -> nn.Module:
    torchmdla.save(module, folder / "model.pt", [x], freeze=freeze, pack_weights=pack_weights)
    _C.set_packages(True)
    return torchmdla.load(folder / "model.pt", map_weights=None if pack_weights else True)


def loaded_with_attributes(module: nn.Module, x: Tensor, folder: Path) -> nn.Module:
    return loaded(module, x, folder, freeze=False, pack_weights=False)


VARIANTS = [compiled, loaded, loaded_with_attributes]


def weights_of(program: nn.Module) -> list[Tensor]:
    """Return the large weights of a program, which are constants or parameters."""
    constants = [node.t("value") for node in program.graph.findAllNodes("prim::Constant") if is_tensor(node)]
    return [tensor for tensor in (*constants, *program.parameters()) if tensor.nbytes >= MIB]


def is_tensor(node: torch._C.Node) -> bool:
    return node.hasAttribute("value") and node.kindOf("value") == "t"


def packed_weights_of(program: nn.Module) -> list[Tensor]:
    return [weight for weight in weights_of(program) if weight.size(0) != Lookup.ROWS]


def resident_share(program: nn.Module) -> float:
    """Return the resident share of the pages of a program's packed weights."""
    size, entries = mmap.PAGESIZE, []
    with open("/proc/self/pagemap", "rb") as file:
        for weight in packed_weights_of(program):
            file.seek(weight.data_ptr() // size * 8)
            entries += struct.unpack(f"={weight.nbytes // size}Q", file.read(weight.nbytes // size * 8))
    return sum(entry >> 63 for entry in entries) / len(entries)


@pytest.mark.parametrize("model", [lookup, convolution])
@pytest.mark.parametrize("way", [compiled, loaded])
def test_packed_weights_leave_the_resident_set(
    way: Callable[..., nn.Module], model: Callable[[], tuple[nn.Module, Tensor]], tmp_path: Path
):
    module, x = model()
    program = way(module, x, tmp_path)
    assert resident_share(program) < 0.1
    for _ in range(3):
        assert_matches(program(x), module(x), layers=3)
    assert resident_share(program) < 0.1
    assert not torchmdla.stats().fallbacks


@pytest.mark.parametrize("way", VARIANTS)
def test_weights_can_be_read_at_any_time(way: Callable[..., nn.Module], tmp_path: Path):
    module, x = lookup()
    program = way(module, x, tmp_path)
    program(x)
    originals = [original for weight in module.parameters() for original in (weight, weight.t())]
    for weight in weights_of(program):
        assert any(torch.equal(weight, original) for original in originals)
    others = torch.randint(Lookup.ROWS, (2, 7))
    assert_matches(program(others), module(others), layers=3)
    with torchmdla.enabled(False):
        assert_matches(program(x), module(x), layers=3)
    file = io.BytesIO()
    torch.jit.save(program, file)
    copies = copy.deepcopy(program), torch.jit.load(io.BytesIO(file.getvalue()))
    del program
    for copied in copies:
        for _ in range(4):
            assert_matches(copied(x), module(x), layers=3)


def all_of(weight: Tensor) -> None:
    weight.data.mul_(-1)


def row(weight: Tensor) -> None:
    weight.data[WIDTH // 3] += 1


def one_element(weight: Tensor) -> None:
    weight.detach().numpy()[WIDTH // 2, WIDTH // 2] += 64


def by_pointer(weight: Tensor) -> None:
    (ctypes.c_float * 16).from_address(weight.data_ptr() + weight.nbytes - 64)[:] = [8.0] * 16


def with_version(weight: Tensor) -> None:
    weight.mul_(-1)


@pytest.mark.parametrize("write", [all_of, row, one_element, by_pointer, with_version])
@pytest.mark.parametrize("way", VARIANTS)
def test_writes_are_noticed(way: Callable[..., nn.Module], write: Callable[[Tensor], None], tmp_path: Path):
    # Fast algorithms have errors of the size of the weights, which the writes enlarge.
    torchmdla.enable(algorithms="direct")
    module, x = lookup()
    program = way(module, x, tmp_path)
    for number in range(3):
        program(x)
        weight = packed_weights_of(program)[0]
        write(weight)
        with torchmdla.enabled(False):
            expected = program(x)
        is_at_once = write in (all_of, with_version)
        end = time.monotonic() + 60
        while not torch.allclose(actual := program(x), expected, rtol=1e-4, atol=1e-4):
            assert not is_at_once and time.monotonic() < end, f"write {number} is not noticed"
        assert_matches(actual, expected, layers=3)


def test_later_loads_of_weights(tmp_path: Path):
    module, x = lookup()
    program = loaded_with_attributes(module, x, tmp_path)
    program(x)
    for _ in range(2):
        other, _ = lookup()
        program.load_state_dict(other.state_dict())
        assert_matches(program(x), other(x), layers=3)
        time.sleep(0.01)


def test_a_file_may_be_replaced(tmp_path: Path):
    module, x = lookup()
    program, other = loaded(module, x, tmp_path), lookup()[0]
    replaced = loaded(other, x, tmp_path)
    for _ in range(2):
        assert_matches(program(x), module(x), layers=3)
        assert_matches(replaced(x), other(x), layers=3)


def test_the_module_keeps_its_weights():
    module, x = lookup()
    expected, addresses = module(x), [weight.data_ptr() for weight in module.parameters()]
    program = torchmdla.compile(module, x, map_weights=True)
    assert [weight.data_ptr() for weight in module.parameters()] == addresses
    for layer in module.layers[::2]:
        layer.weight.zero_()
    assert_matches(program(x), expected, layers=3)


def test_a_frozen_program_that_ran_before():
    module, x = lookup()
    frozen = torch.jit.freeze(torch.jit.trace(module, x))
    for _ in range(4):
        frozen(x)
    program = torchmdla.compile(frozen, x, map_weights=True)
    assert_matches(program(x), module(x), layers=3)
    assert resident_share(program) < 0.1


def test_weights_that_share_memory_share_it_in_the_file():
    module, x = lookup()
    module.layers[2].weight = nn.Parameter(module.layers[0].weight.t())
    program = torchmdla.compile(module, x, map_weights=True)
    assert_matches(program(x), module(x), layers=3)
    first, second = packed_weights_of(program)
    assert first.data_ptr() == second.data_ptr()


def test_a_constant_that_the_program_writes():
    counts = torch.zeros(256, 256)

    def count(x: Tensor) -> Tensor:
        counts.add_(1)
        return torch.relu(x @ x) + counts

    class Count(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return count(x)

    x = torch.randn(256, 256)
    program = torchmdla.compile(Count().eval(), x, map_weights=True)
    before = program(x)
    assert_matches(program(x), before + 1)


def test_threads_and_forks(tmp_path: Path):
    module, x = lookup()
    program = loaded(module, x, tmp_path)
    expected = module(x)
    assert not in_threads(4, lambda _: [assert_matches(program(x), expected, layers=3) for _ in range(20)])

    def call_and_write() -> bool:
        torch.set_num_threads(1)  # the threads of the pool do not exist in the child
        assert_matches(program(x), expected, layers=3)
        all_of(packed_weights_of(program)[0])
        with torchmdla.enabled(False):
            after = program(x)
        assert_matches(program(x), after, layers=3)
        return True

    assert in_child(call_and_write) == 0
    assert_matches(program(x), expected, layers=3)


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
def test_a_program_without_constants_is_refused(frontend: str):
    module, x = lookup()
    with pytest.raises(TypeError, match="map_weights needs"):
        torchmdla.compile(module.train(frontend == "torchscript"), x, frontend=frontend, map_weights=True)
