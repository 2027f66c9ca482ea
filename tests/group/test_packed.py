"""Packed weights: changes of the weights are noticed, and packed data is freed with the weights."""

from __future__ import annotations

import copy
import ctypes
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from child_process import output_of
from in_threads import in_threads
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import torchmdla
from torchmdla import devices
from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.device import LoadedCode
from torchmdla.testing.compare import assert_matches

Call = Callable[[Tensor], Tensor]


pytestmark = pytest.mark.usefixtures("without_gradients")


@dataclass
class Packings:
    """Counts of buffers that were packed and freed since the test began."""

    packed: int = 0
    freed: int = 0


_PACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Packings]:
    """Count the buffers that code of the cpu device packs, and check that all are freed in the end."""
    counts = Packings()
    device = devices.get("cpu")
    load = device.load

    def counted(address: int) -> Any:
        pack = _PACK(address)

        def call(buffers: Any) -> int:
            counts.packed += 1
            return pack(buffers)

        return _PACK(call)

    @_RELEASE
    def release(_: Any) -> None:
        counts.freed += 1

    def load_counted(artifact: Artifact) -> LoadedCode:
        loaded = load(artifact)
        packs = [counted(address) for address in loaded.packs]
        addresses = tuple(ctypes.cast(pack, ctypes.c_void_p).value or 0 for pack in packs)
        releases = (ctypes.cast(release, ctypes.c_void_p).value or 0,) * len(packs)
        return replace(loaded, packs=addresses, releases=releases, owner=(loaded, packs, release))

    monkeypatch.setattr(device, "load", load_counted)
    yield counts
    torchmdla.refresh()
    assert counts.freed == counts.packed


# --- writes ---------------------------------------------------------------------------------------------------------


def linear(columns: int = 512) -> tuple[nn.Module, Tensor]:
    """Return a layer and an input.

    Scripted modules of one type share graphs, and groups share the code that is compiled for a size.
    """
    return nn.Sequential(nn.Linear(columns, 256), nn.ReLU()), torch.randn(4, columns)


def convolution() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Conv2d(64, 96, 3), nn.ReLU()), torch.randn(1, 64, 9, 9)


def depthwise() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Conv2d(96, 96, 3, groups=96), nn.ReLU()), torch.randn(1, 96, 9, 9)


class Tied(nn.Module):
    """A module whose embedding table is also the output's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64, padding_idx=0)
        self.output = nn.Linear(64, 1000)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.output(torch.tanh(self.embedding(tokens))))


def tied() -> tuple[nn.Module, Tensor]:
    return Tied(), torch.randint(0, 1000, (2, 6))


def row(weight: Tensor) -> None:
    weight.data[3] += 1


def padding_row(weight: Tensor) -> None:
    weight.data[0] = 0


def column(weight: Tensor) -> None:
    weight.data[:, weight.size(1) // 3] = 0.5


def by_numpy(weight: Tensor) -> None:
    weight.detach().numpy()[-1] *= -2


def one_element(weight: Tensor) -> None:
    weight.data.view(-1)[weight.numel() // 3] += 64


def by_pointer(weight: Tensor) -> None:
    middle = weight.nbytes // 128 * 64
    (ctypes.c_float * 16).from_address(weight.data_ptr() + middle)[:] = [8.0] * 16


WRITES = [row, padding_row, column, by_numpy, one_element, by_pointer]
MODELS = [linear, convolution, depthwise, tied]

# Functions that make a callable that shares the module's weights.
VARIANTS: dict[str, Callable[[nn.Module, Tensor], Call]] = {
    "scripted": lambda module, _: torch.jit.script(module),
    "traced": lambda module, x: torch.jit.trace(module, (x,), check_trace=False),
    "torch.compile": lambda module, _: torch.compile(module, backend="torchmdla"),
    "exported": lambda module, x: torchmdla.compile(module, x, frontend="export"),
}

# Every cache line is compared within this number of calls.
MOST_CALLS = 4096


def warm(way: str, module: nn.Module, x: Tensor) -> Call:
    call = VARIANTS[way](module.eval(), x)
    for _ in range(4):
        assert_matches(call(x), module(x), layers=3)
    assert not torchmdla.stats().fallbacks
    return call


def calls_until_noticed(call: Call, x: Tensor, module: nn.Module) -> int:
    expected = module(x)
    for number in range(1, MOST_CALLS + 1):
        if torch.allclose(call(x), expected, rtol=1e-4, atol=1e-4):
            return number
    raise AssertionError(f"not noticed within {MOST_CALLS} calls")


def weight_of(module: nn.Module) -> Tensor:
    return max(module.parameters(), key=Tensor.numel)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_writes_that_last_are_noticed(model: Callable[[], tuple[nn.Module, Tensor]], write: Callable[[Tensor], None]):
    module, x = model()
    call = warm("traced", module, x)
    weight = weight_of(module)
    version = weight._version
    write(weight)
    assert weight._version == version
    lines = weight.nbytes // 64
    rows = weight.size(0)
    most = {row: 3 * rows, padding_row: 3 * rows, by_numpy: 3 * rows}.get(write, lines)
    assert calls_until_noticed(call, x, module) <= max(min(most // 2, MOST_CALLS), 2)
    assert_matches(call(x), module(x), layers=3)


@pytest.mark.parametrize("way", VARIANTS)
def test_writes_are_noticed_on_every_frontend(way: str):
    module, x = linear()
    call = warm(way, module, x)
    for _ in range(3):
        row(weight_of(module))
        calls_until_noticed(call, x, module)


def in_place(weight: Tensor) -> Tensor:
    return weight


def regather(weight: Tensor) -> Tensor:
    """Gather a weight as FSDP does: free its memory and allocate it again, usually at the same address."""
    content, storage = weight.clone(), weight.untyped_storage()
    bytes_before = storage.size()
    storage.resize_(0)
    storage.resize_(bytes_before)
    return weight.copy_(content)


@pytest.mark.parametrize("prepare", [in_place, regather], ids=lambda prepare: prepare.__name__)
@pytest.mark.parametrize("way", VARIANTS)
def test_writes_of_pytorch_that_keep_the_version_are_noticed_at_once(way: str, prepare: Callable[[Tensor], Tensor]):
    module, x = linear()
    call = warm(way, module, x)
    weight = weight_of(module)
    version = weight._version
    for place in range(20):
        with torch.autograd._unsafe_preserve_version_counter(weight):
            prepare(weight)[3 * place] += 1
        assert weight._version == version
        assert_matches(call(x), module(x), layers=3)


@pytest.mark.parametrize("size", [1, 16, 17, 63, 64, 65])
def test_small_weights_are_compared_whole(size: int):
    module, x = nn.Sequential(nn.Linear(1, size), nn.ReLU()), torch.ones(3, 1)
    call = warm("traced", module, x)
    for parameter in module.parameters():
        parameter.data.view(-1)[-1] += 1
        assert calls_until_noticed(call, x, module) <= (1 if size <= 64 else 3)


@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.parametrize("of_all", [False, True])
def test_refresh_is_certain(way: str, of_all: bool):
    module, x = tied()
    call = warm(way, module, x)
    for write in WRITES:
        write(weight_of(module))
        torchmdla.refresh(None if of_all else module)
        assert_matches(call(x), module(x), layers=3)


def test_refresh_is_of_one_module(packings: Packings):
    (first, x), (other, _) = linear(), linear()
    calls = [warm("traced", module, x) for module in (first, other)]
    before = packings.packed
    for touched, times in ((first, 1), (None, 2), (nn.Linear(2, 2), 0), (other, 1)):
        torchmdla.refresh(touched)
        for call in calls:
            call(x)
        before += times
        assert packings.packed == before


class Holder(nn.Module):
    """A module whose weight is only reachable through ``place``."""

    def __init__(self, place: Callable[[Tensor], Any], reach: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.place, self.reach = place(torch.randn(512, 512)), reach

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.reach(self.place))


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("weight",)

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight


PLACES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "list": (lambda weight: [weight], lambda place: place[0]),
    "dict of tuples": (lambda weight: {"a": (1, weight)}, lambda place: place["a"][1]),
    "object": (lambda weight: SimpleNamespace(weight=weight), lambda place: place.weight),
    "slots": (Slotted, lambda place: place.weight),
    "list of modules": (lambda weight: [Inner(weight)], lambda place: place[0].weight),
    "closure": (lambda weight: lambda: weight, lambda place: place()),
    "partial": (lambda weight: partial(torch.clone, weight), lambda place: place.args[0]),
}


class Inner(nn.Module):
    """A module with one parameter."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


@pytest.mark.parametrize(("place", "reach"), PLACES.values(), ids=PLACES.keys())
def test_refresh_finds_weights_anywhere(place: Callable[[Tensor], Any], reach: Callable[[Any], Tensor]) -> None:
    module, x = Holder(place, reach).eval(), torch.randn(8, 512)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="torchmdla")
    for _ in range(6):
        compiled(x)
    reach(module.place).data[300:301].mul_(3)
    torchmdla.refresh(module)
    assert_matches(compiled(x), module(x))


def test_refresh_of_unreachable_weights_refreshes_all(packings: Packings):
    """Refreshing a module with unreachable weights refreshes everything.

    The weights of a frozen module are in its graph. Those on a device with its own memory are there. Some tensors wrap
    other tensors.
    """
    module, x = linear()
    frozen = torchmdla.compile(module.eval(), x)
    wrapped = copy.deepcopy(module)
    weight = weight_of(module).detach()
    wrapped.register_parameter("of_two", nn.Parameter(TwoTensor(weight, weight)))
    for touched in (frozen, copy.deepcopy(module).to("meta"), wrapped):
        before = packings.packed
        torchmdla.refresh(touched)
        frozen(x)
        assert packings.packed == before + 1
    with pytest.raises(TypeError, match="got function"):
        torchmdla.refresh(torchmdla.refresh)  # type: ignore[arg-type]


def test_nothing_is_packed_anew_without_a_write(packings: Packings):
    module, x = tied()
    call = warm("traced", module, x)
    before = packings.packed
    for _ in range(200):
        call(x)
    assert packings.packed == before


def test_threads_look_at_the_same_weights(packings: Packings):
    """Several threads compare the same weights, and one of them notices the write."""
    module, x = linear()
    call = warm("traced", module, x)

    @torch.no_grad()
    def work(_: int) -> None:
        for _ in range(500):
            call(x)

    before = packings.packed
    assert not in_threads(4, work)
    assert packings.packed == before
    row(weight_of(module))
    assert not in_threads(4, work)
    assert_matches(call(x), module(x))


# --- weights that no longer exist -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.sampled(1)
def test_packed_weights_are_freed_with_the_weights(way: str, packings: Packings):
    """PyTorch keeps the graphs of traced modules, and thus their groups."""
    module, x = linear(496)
    call = warm(way, module, x)
    assert packings.packed > packings.freed
    del module, call
    torch._dynamo.reset()
    gc.collect()
    assert packings.packed == packings.freed


def test_packed_weights_stay_while_the_weights_live(packings: Packings):
    module, x = linear()
    call = warm("traced", module, x)
    other = copy.deepcopy(module)
    before = packings.packed
    gc.collect()
    call(x)
    assert packings.packed == before
    del other, module
    gc.collect()
    call(x)
    assert packings.packed == before


def test_replaced_weights_are_dropped_at_the_next_packing(packings: Packings):
    """Replaced weights are dropped without a garbage collection, so only those of one model remain."""
    gc.disable()
    try:
        module, x = linear(480)
        call = warm("scripted", module, x)
        scripted: Any = call
        for _ in range(5):
            scripted._modules["0"].weight = nn.Parameter(torch.randn(256, 480))
            call(x)
            assert packings.packed - packings.freed <= 4
        assert packings.packed > 4
    finally:
        gc.enable()


# --- programs that no longer exist ------------------------------------------------------------------------------------

MEASURES = """
import ctypes, dataclasses, gc, torch, torchmdla
from torchmdla import devices
def kilobytes():
    ctypes.CDLL(None).malloc_trim(0)
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
def mappings():
    return len(open("/proc/self/maps").readlines())
"""

GROWTH = """
for number in range(5):
    one(number)
gc.collect()
before = kilobytes(), mappings()
for number in range(COUNT):
    one(number)
gc.collect()
print(*((now - then) / COUNT for now, then in zip((kilobytes(), mappings()), before)))
"""

TRACED = """
COUNT = 40
x = torch.randn(4, 256)
def one(number):
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64)).eval()
    traced = torch.jit.trace(model, (x,), check_trace=False)
    with torch.no_grad():
        for _ in range(4):
            traced(x)
"""

LOADED = """
COUNT = 1000
x = torch.randn(9, 9)
device = devices.get("cpu")
load, seen = device.load, []
device.load = lambda artifact: seen.append(artifact) or load(artifact)
first = torchmdla.compile(lambda x: torch.tanh(x @ x) * 2, x)
expected = first(x)
def one(number):
    manifest = dataclasses.replace(seen[0].manifest, program=str(number))
    assert load(dataclasses.replace(seen[0], manifest=manifest)).entry
    assert torch.equal(first(x), expected)
"""


def growth(program: str) -> tuple[float, float]:
    """Return the kilobytes and mappings that remain per ``one(number)`` of a program, run in its own process."""
    kilobytes, mappings = map(float, output_of(MEASURES + program + GROWTH).split())
    return kilobytes, mappings


@pytest.mark.sampled(0)
def test_memory_of_dropped_models() -> None:
    """The weights of each model have 1.3 MB. PyTorch itself keeps graphs and plans of each."""
    (of_pytorch, _), (kilobytes, mappings) = growth("torchmdla.disable()" + TRACED), growth(TRACED)
    assert kilobytes < of_pytorch + 300
    assert mappings < 0.5


@pytest.mark.sampled(0)
def test_memory_of_dropped_code() -> None:
    kilobytes, mappings = growth(LOADED)
    assert kilobytes < 6
    assert mappings < 0.05
