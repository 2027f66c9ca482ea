"""Sizes that vary: the choice of symbols, compilation for any size, and decisions that need one size."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from child_process import output_of
from graphs import anew, warmed_up
from hypothesis import given, settings
from hypothesis import strategies as st
from in_threads import in_threads
from torch import Tensor, nn

import torchmdla
from torchmdla.capture.script_subgraph import ScriptSubgraph
from torchmdla.compile_service import service
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Return the list of dynamic programs that the compiler receives."""
    seen: list[Program] = []
    compile_program = service.compile_program

    def spy(program: Program) -> service.CompileOutcome:
        if program.symbols:
            seen.append(program)
        return compile_program(program)

    monkeypatch.setattr(service, "compile_program", spy)
    return seen


@pytest.fixture
def no_dynamic_compiler(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Let the compiler refuse dynamic programs, and return the list of those that it receives."""
    asked: list[Program] = []
    compile_program = service.compile_program

    def refuse(program: Program) -> service.CompileOutcome:
        if program.symbols:
            asked.append(program)
            raise CompileError("no such sizes")
        return compile_program(program)

    monkeypatch.setattr(service, "compile_program", refuse)
    return asked


def chain(x: Tensor) -> Tensor:
    return torch.sigmoid(torch.tanh(x) * 2 + 1)


def call_twice(scripted: Any, function: Any, inputs: Sequence[Any], layers: int = 1) -> None:
    """Call twice and compare: the first call with new sizes may run eager ops, the second does not."""
    for _ in range(2):
        assert_matches(scripted(*inputs), function(*inputs), layers=layers)


# --- choice of symbols ------------------------------------------------------------------------------------------------


def first_rows(x: Tensor, rows: int) -> Tensor:
    return torch.tanh(x[:rows]) * 2


def expanded(x: Tensor, sizes: list[int]) -> Tensor:
    return torch.tanh(x.expand(sizes)).sum(0) * 2


def joined(parts: list[Tensor]) -> Tensor:
    return torch.tanh(torch.cat(parts)) * 2


def integers_from_a_size(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = x.size(0)
    places = torch.arange(n) * 3
    return (places + n) * (n - 12) - n, places.unsqueeze(1) <= n - 12, torch.rsub(places, n) != places


def sized_and_scaled_by_a_quotient(x: Tensor) -> Tensor:
    count = x.size(0) // 3
    return ((torch.zeros([count, 4]) + x.sum()) * count).flatten()


def embedded_positions(x: Tensor, table: Tensor) -> Tensor:
    past = x.size(0) - 3
    return torch.tanh(nn.functional.embedding(torch.arange(3) + past, table)) + x.sum()


def triangles(x: Tensor) -> tuple[Tensor, Tensor]:
    seen = torch.ones(3, x.size(0), dtype=torch.bool).tril(x.size(0) - 12)
    return torch.triu(torch.tanh(x), 12 - x.size(0)) * 2, torch.where(seen.unsqueeze(-1), x, 0.0)


def cached(x: Tensor) -> Tensor:
    seen = torch.ones(1, x.size(0), dtype=torch.bool).tril(x.size(0) - 1)
    return torch.where(seen.unsqueeze(-1), torch.tanh(x), 0.0) * 2


def with_sizes(x: Tensor) -> tuple[Tensor, int, int]:
    y = torch.tanh(x.flatten()) * 2
    return y, x.size(0) * x.size(1) + 1, x.size(1) - 2


CONVOLUTION = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval().requires_grad_(False)
LINEAR = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 5)).eval().requires_grad_(False)


def attention(x: Tensor, mask: Tensor) -> Tensor:
    scores = (x @ x.transpose(1, 2)).masked_fill(mask.unsqueeze(1), -1e4)
    return torch.softmax(scores, -1) @ x


def channels_last(batch: int, side: int = 6) -> tuple[Tensor]:
    return (torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last),)


@dataclass(frozen=True)
class Case:
    """A function, a maker of its inputs from sizes, sizes to learn from, further sizes, and the expected symbols."""

    function: Callable[..., Any]
    draw: Callable[..., tuple[Any, ...]]
    first: Sequence[Sequence[int]]
    further: Sequence[Sequence[int]]
    symbols: tuple[int, ...]
    scripted: bool = False  # a trace would not retain its numbers


CASES = {
    "batch": Case(LINEAR, lambda n: (torch.randn(n, 12),), [[4], [5], [8]], [[3], [2], [100], [64]], (8,)),
    "the first token of one sequence": Case(
        lambda x: LINEAR((torch.tanh(x) * 2)[:, 0]),
        lambda n: (torch.randn(1, n, 12),),
        [[4], [6], [9]],
        [[3], [90]],
        (9,),
    ),
    "sequence in two inputs": Case(
        attention,
        lambda s: (torch.randn(2, s, 8), torch.rand(2, s) < 0.3),
        [[7], [5], [9]],
        [[3], [20], [64], [13]],
        (9,),
    ),
    "batch and sequence": Case(
        attention,
        lambda b, s: (torch.randn(b, s, 8), torch.rand(b, s) < 0.3),
        [[2, 7], [3, 5], [5, 9]],
        [[9, 4], [4, 20], [70, 3], [6, 6]],
        (5, 9),
    ),
    "two inputs of one symbol each": Case(
        lambda x, y: torch.relu(x @ y) + 1,
        lambda m, n: (torch.randn(m, 6), torch.randn(6, n)),
        [[3, 8], [4, 4], [6, 9]],
        [[9, 3], [2, 50], [5, 5]],
        (6, 9),
    ),
    "an integer": Case(first_rows, lambda n: (torch.randn(90, 3), n), [[4], [5], [6]], [[7], [50], [80]], (6,), True),
    "a list of integers": Case(
        expanded, lambda n: (torch.randn(3), [n, 3]), [[4], [5], [6]], [[7], [30], [100]], (6,), True
    ),
    "a list of tensors": Case(
        joined,
        lambda m, n: ([torch.randn(m, 3), torch.randn(n, 3)],),
        [[4, 2], [5, 2], [6, 2]],
        [[2, 2], [90, 2]],
        (6,),
        True,
    ),
    "channels last": Case(CONVOLUTION, channels_last, [[2], [3], [4]], [[5], [9], [30]], (4,)),
    "channels last, height and width": Case(
        CONVOLUTION, lambda n: channels_last(2, n), [[5], [7], [9]], [[8], [70], [4]], (9,)
    ),
    "rows by an index": Case(
        lambda x, index: torch.tanh(x)[index] * 2,
        lambda n: (torch.randn(n, 3), torch.randperm(n)),
        [[4], [5], [6]],
        [[7], [50], [2]],
        (6,),
    ),
    "a diagonal": Case(cached, lambda n: (torch.randn(n, 3),), [[4], [5], [6]], [[7], [50], [2]], (6,), True),
    "a transposed input": Case(chain, lambda n: (torch.randn(n, 5).t(),), [[4], [3], [6]], [[2], [90], [7]], (6,)),
    "an input with gaps": Case(
        chain, lambda n: (torch.randn(2 * n, 10)[::2, 1:],), [[4], [3], [6]], [[2], [90], [7]], (6,)
    ),
    "an expanded input": Case(
        lambda x: torch.tanh(x).sum(0) * 2, lambda n: (torch.randn(1, 5).expand(n, 5),), [[4], [3], [6]], [[90]], (6,)
    ),
    "a transposed output": Case(
        lambda x: (torch.tanh(x) * 2).permute(2, 0, 1).contiguous().permute(1, 2, 0) + 1,
        lambda m, n: (torch.randn(m, n, 3),),
        [[4, 5], [3, 7], [6, 9]],
        [[2, 90], [7, 7]],
        (6, 9),
    ),
    "outputs that are sizes": Case(
        with_sizes, lambda m, n: (torch.randn(m, n),), [[4, 5], [3, 7], [6, 9]], [[2, 90], [7, 7]], (6, 9), True
    ),
    "several outputs": Case(
        lambda x: (torch.tanh(x) * 2, x.sum(1), torch.cat([x, x * 2], 1)),
        lambda n: (torch.randn(4, n),),
        [[4], [3], [6]],
        [[2], [90]],
        (6,),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_become_symbols(name: str, programs: list[Program]) -> None:
    case = CASES[name]
    with torch.no_grad():
        function = torch.jit.script(case.function) if case.scripted else case.function
        scripted = warmed_up(function, *case.draw(*case.first[0]))
        for sizes in [*case.first, *case.further]:
            call_twice(scripted, case.function, case.draw(*sizes), layers=3)
    assert [program.symbols for program in programs] == [case.symbols]
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.dynamic) == (3, 1)
    assert stats.not_dynamic == stats.fallbacks == {}


def test_samples_are_different_primes(programs: list[Program]) -> None:
    case = CASES["batch and sequence"]
    scripted = warmed_up(case.function, *case.draw(*case.first[0]))
    for sizes in case.first:
        scripted(*case.draw(*sizes))
    (program,) = programs
    values = [value for sample in program.samples for value in sample.values]
    assert len(set(values)) == len(values) == 10
    assert all(value > 1 and all(value % divisor for divisor in range(2, value)) for value in values)
    assert not set(values) & {2, 8, *program.symbols}
    for sample in program.samples:
        batch, sequence = sample.values
        assert [argument.shape for argument in sample.arguments] == [(batch, sequence, 8), (batch, sequence)]


def test_zero_and_one_stay_specialisations(programs: list[Program]) -> None:
    scripted = warmed_up(chain, torch.randn(1, 3))
    for size in [1, 2, 0, 3, 1, 4, 0, 5, 1]:
        call_twice(scripted, chain, (torch.randn(size, 3),))
    assert [program.symbols for program in programs] == [(4,)]
    assert torchmdla.stats().specialisations == 5  # 0, 1, 2, 3 and any size


def test_symbols_that_turn_out_to_be_two(programs: list[Program]) -> None:
    scripted = warmed_up(chain, torch.randn(5, 5))
    for rows, columns in [(5, 5), (9, 9), (7, 7), (6, 6), (6, 8), (3, 30), (8, 8)]:
        call_twice(scripted, chain, (torch.randn(rows, columns),))
    assert [program.symbols for program in programs] == [(7,), (6, 8)]


def test_other_dtypes_and_layouts_are_other_specialisations(programs: list[Program]) -> None:
    scripted = warmed_up(chain, torch.randn(4, 4))
    for make in (lambda n: torch.randn(n, 4), lambda n: torch.randn(n, 4).double(), lambda n: torch.randn(4, n).t()):
        for size in (5, 6, 7, 8):
            call_twice(scripted, chain, (make(size),))
    assert [program.arguments[0].dtype for program in programs] == ["float32", "float64", "float32"]
    assert [program.arguments[0].shape for program in programs] == [(6, 4), (7, 4), (4, 7)]


def test_parameters_are_never_symbols() -> None:
    class Net(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, width), nn.Linear(width, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(torch.relu(self.inner(x)))

    x = torch.randn(3, 4)
    with torch.no_grad():
        for width in (5, 6, 7, 8):
            net = Net(width).eval()
            scripted = warmed_up(torch.jit.script(net), x)
            call_twice(scripted, net, (x,), layers=2)
    stats = torchmdla.stats()
    assert (stats.dynamic, stats.not_dynamic) == (0, {})


def test_switched_off(programs: list[Program]) -> None:
    torchmdla.enable(dynamic=False)
    scripted = warmed_up(chain, torch.randn(4, 4))
    for size in (5, 6, 7):
        call_twice(scripted, chain, (torch.randn(size, 4),))
    assert programs == []
    assert torchmdla.stats().specialisations == 4
    torchmdla.enable()
    call_twice(scripted, chain, (torch.randn(8, 4),))
    assert torchmdla.stats().dynamic == 1


# --- decisions that depend on sizes -----------------------------------------------------------------------------------


def short_table(x: Tensor, table: Tensor) -> Tensor:
    return torch.tanh(x + table[: x.size(0)]) * 2


def rolled(x: Tensor, shift: int) -> Tensor:
    return torch.tanh(torch.roll(x, [shift], [0])) * 2


def rolled_by_seven(x: Tensor) -> Tensor:
    return torch.tanh(torch.roll(x, [7], [0])) * 2


def with_sizes(x: Tensor) -> tuple[Tensor, list[int], list[int]]:
    y = torch.tanh(x) * 2
    return y, y.size(), [x.size(0) - 12, 5]


def rows(n: int) -> tuple[Tensor]:
    return (torch.randn(n, 3),)


# Sizes around every constant below: small ones, neighbours, powers of two, and sizes seen before.
AROUND_TWELVE = [20, 17, 15, 13, 12, 11, 14, 9, 10, 3, 2, 1, 24, 25, 23, 64, 33, 36, 35, 13]

# A function, or an expression of a tensor ``x`` and its size ``n``; a maker of inputs from a size; and sizes.
DECIDED: dict[str, tuple[Any, Callable[[int], tuple[Any, ...]], list[int]]] = {
    "a strided window": (
        "nn.functional.avg_pool2d(torch.tanh(x), 3, stride=2) * 2",
        lambda n: (torch.randn(1, 2, n, n),),
        [7, 9, 11, 13, 8, 10, 3, 4, 5, 64, 33],
    ),
    "a comparison": ("(torch.tanh(x) * 2, n == 12)", rows, AROUND_TWELVE),
    "a remainder": ("(torch.tanh(x) * 2)[n % 2 :] + 1", rows, AROUND_TWELVE),
    "a shift that varies": (rolled, lambda n: (torch.randn(13, 2), n), [9, 11, 12, 3, 13, 30, 14, 26, 0, 27, 1]),
    "a shift beyond some sizes": (rolled_by_seven, rows, [9, 11, 13, 8, 7, 5, 6, 14, 3, 2, 1]),
    "a slice that ends at some sizes": ("torch.tanh(x[:40]) * 2", rows, [4, 5, 6, 20, 39, 41, 100, 40, 30]),
    "a table of a fixed length": (short_table, lambda n: (torch.randn(n, 3), torch.randn(7, 3)), [4, 5, 6, 7, 2]),
    "an index": ("(x * 2 + 1)[n - 12] * 3", rows, [20, 17, 15, 13, 12, 11, 14, 9, 10, 64, 6, 11]),
    "a slice": ("(x * 2 + 1)[n - 12 : n - 10] * 3", rows, AROUND_TWELVE),
    "an amount of padding": (
        "nn.functional.pad(x * 2 + 1, [0, 0, n - 12, 0]) * 3",
        rows,
        [20, 17, 15, 13, 12, 11, 14, 9, 10, 7, 64, 11],
    ),
    "an index to write at": (
        "torch.select_scatter(x * 2, x[0], 0, n - 12) * 2",
        rows,
        [20, 17, 15, 13, 12, 11, 14, 9, 10, 6, 64, 11],
    ),
    "a factor that is a comparison": ("torch.tanh(x) * float(n > 12)", rows, AROUND_TWELVE),
    "a factor that is a size": ("torch.tanh(x) * n / (x.size(1) + 1)", rows, AROUND_TWELVE),
    "a factor that is a quotient": ("torch.tanh(x) * (n // 12)", rows, AROUND_TWELVE),
    "a factor that is a power": ("torch.tanh(x) * ((-1) ** n)", rows, AROUND_TWELVE),
    "a tensor of a size": ("torch.where(torch.full_like(x, n) > 12, x * 2, x * 3)", rows, AROUND_TWELVE),
    "integers": (integers_from_a_size, rows, AROUND_TWELVE),
    "a quotient that is a size and a factor": (sized_and_scaled_by_a_quotient, rows, AROUND_TWELVE),
    "positions": (embedded_positions, lambda n: (torch.randn(n, 3), torch.randn(90, 4)), [9, 5, 12, 13, 3, 90, 4]),
    "lists of sizes": (with_sizes, rows, AROUND_TWELVE),
    "a diagonal": (triangles, rows, AROUND_TWELVE),
    "a range": ("torch.arange(n - 12, n) * torch.tanh(x.sum())", rows, [20, 17, 15, 13, 12, 11, 14, 9, 10, 64, 6, 11]),
}


@pytest.mark.parametrize(("function", "imports"), [(chain, 2), (rolled_by_seven, 5)])
def test_an_import_for_all_sizes_is_a_template(
    function: Any, imports: int, programs: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that one import gives all samples, and that all are imported if a number is not an expression of sizes."""
    imported: list[Any] = []
    import_program = ScriptSubgraph.import_program

    def spy(*arguments: Any) -> Any:
        imported.append(arguments)
        return import_program(*arguments)

    monkeypatch.setattr(ScriptSubgraph, "import_program", spy)
    scripted = warmed_up(torch.jit.script(function), torch.randn(8, 4))
    for rows in (12, 17, 30):
        before = len(imported)
        call_twice(scripted, function, (torch.randn(rows, 4),))
        if programs:
            break
    assert len(imported) - before == imports


@pytest.mark.parametrize("scripted", [True, False], ids=["scripted", "traced"])
@pytest.mark.parametrize("name", DECIDED)
@pytest.mark.sampled(6)
def test_a_branch_on_a_size_holds_for_that_size(name: str, scripted: bool) -> None:
    function, draw, sizes = DECIDED[name]
    if not scripted and name in ("a comparison", "a shift that varies", "lists of sizes"):
        pytest.skip("a trace does not keep its numbers")
    if scripted:
        compiled = script_copy(function)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            compiled = torch.jit.trace(in_python(function), draw(sizes[0]), check_trace=False)
    for size in sizes:
        inputs = draw(size)
        # A trace converts booleans and floats of sizes to constants, so the reference is the trace itself.
        with torchmdla.enabled(False):
            expected = compiled(*inputs)
        for _ in range(2):
            assert_matches(compiled(*inputs), expected)
    assert set(torchmdla.stats().fallbacks) <= {"torchmdla is switched off"}


_SOURCE = "def f(x):\n    n = x.size(0)\n    return {}\n"


def in_python(program: Any) -> Any:
    if not isinstance(program, str):
        return program
    names = dict(globals())
    exec(_SOURCE.format(program), names)
    return names["f"]


def script_copy(program: Any) -> Any:
    """Return a program of :data:`DECIDED` as TorchScript with its own groups."""
    return torch.jit.CompilationUnit(_SOURCE.format(program)).f if isinstance(program, str) else anew(program)


def test_no_more_is_cut_off_than_there_is() -> None:
    """PyTorch crops first, so padding in front does not prevent the error."""

    def cropped(x: Tensor) -> Tensor:
        return nn.functional.pad(x * 2 + 1, [0, 0, 20, 1 - x.size(1)]) * 3

    scripted = torch.jit.script(cropped)
    for size in (2, 3, 5, 4, 5, 3, 4):
        x = torch.randn(9, size)
        assert_matches(scripted(x), cropped(x))
    assert torchmdla.stats().dynamic == 1
    for size in (11, 12, 30):
        with pytest.raises(RuntimeError, match="length must be non-negative"):
            scripted(torch.randn(9, size))


def test_a_list_of_sizes_is_the_callers() -> None:
    scripted = warmed_up(script_copy(with_sizes), torch.randn(4, 3))
    for size in (4, 4, 5, 6, 7, 7):
        _, sizes, others = scripted(torch.randn(size, 3))
        assert (sizes, others) == ([size, 3], [size - 12, 5])
        sizes.append(1)
        others[0] = 0


@pytest.mark.parametrize("scripted", [True, False], ids=["scripted", "traced"])
def test_gradients_of_broadcasts_at_dynamic_sizes(scripted: bool) -> None:
    def less_its_mean(x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True) - x

    x = torch.randn(8, 11)
    compiled = torch.jit.script(less_its_mean) if scripted else torch.jit.trace(less_its_mean, (x,))
    for sizes in [(8, 11), (12, 7), (16, 10), (13, 6), (31, 7), (24, 24), (9, 17), (31, 5)]:
        leaves = [x.detach().requires_grad_() for x in [torch.randn(sizes)] * 2]
        results = [function(leaf) for function, leaf in zip((compiled, less_its_mean), leaves, strict=True)]
        for result in results:
            (result * result).sum().backward()
        assert_matches(results[0], results[1])
        assert_matches(leaves[0].grad, leaves[1].grad)


# The number of executables that a group needs for all sizes above. Two are for the first sizes. There is one for each
# size that is, or results in, less than 2, and one for each outcome of a decision.
@pytest.mark.parametrize(
    ("name", "static", "dynamic"),
    [("a strided window", 5, 1), ("a slice that ends at some sizes", 2, 2), ("a factor that is a size", 3, 1)],
)
def test_few_executables_for_all_sizes(name: str, static: int, dynamic: int) -> None:
    function, draw, sizes = DECIDED[name]
    scripted = warmed_up(script_copy(function), *draw(sizes[0]))
    for size in sizes:
        call_twice(scripted, in_python(function), draw(size))
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.dynamic, stats.fallbacks) == (static + dynamic, dynamic, {})


def resized(**settings: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: nn.functional.interpolate(torch.tanh(x), **settings) * 2


def pyramid(x: Tensor) -> Tensor:
    """Return the sum of a layer and the resized next, smaller one."""
    below = nn.functional.max_pool2d(x, 2)
    return nn.functional.interpolate(below, size=x.shape[-2:], mode="bilinear", align_corners=False) + x


RESIZED = {
    "nearest, by 2": resized(scale_factor=2),
    "nearest, by 1.5": resized(scale_factor=1.5),
    "nearest-exact, by 2": resized(scale_factor=2, mode="nearest-exact"),
    "nearest, to one size": resized(size=(20, 24)),
    "bilinear, by 2": resized(scale_factor=2, mode="bilinear"),
    "bilinear, by 0.7": resized(scale_factor=0.7, mode="bilinear"),
    "bilinear, to one size": resized(size=(20, 24), mode="bilinear"),
    "bicubic, by 2": resized(scale_factor=2, mode="bicubic"),
    "to the size of a layer before": pyramid,
}

IMAGE_SIZES = [(10, 14), (12, 16), (20, 18), (31, 33), (50, 44), (65, 37), (64, 36), (7, 90), (123, 11)]


@pytest.mark.parametrize("frontend", ["traced", "compile"])
@pytest.mark.parametrize("name", RESIZED)
def test_resized_images_of_many_sizes(name: str, frontend: str) -> None:
    function = RESIZED[name]
    torch._dynamo.reset()
    example = torch.randn(1, 3, *IMAGE_SIZES[0])
    compiled = (
        torch.jit.trace(function, (example,), check_trace=False)
        if frontend == "traced"
        else torch.compile(function, backend="torchmdla")
    )
    for size in IMAGE_SIZES:
        image = torch.randn(1, 3, *size)
        assert_matches(compiled(image), function(image))
    stats = torchmdla.stats()
    assert stats.dynamic >= 1
    assert stats.specialisations < len(IMAGE_SIZES)
    assert stats.fallbacks == {} and stats.left_out == {}


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_places_in_an_image_are_eagers_at_every_size(mode: str) -> None:
    """A quotient of sizes that is rounded differently would select the next element where eager meets one exactly."""
    traced = torch.jit.trace(resized(size=(24, 24), mode=mode), (torch.randn(1, 1, 9, 9),), check_trace=False)
    for length in range(2, 130):
        image = torch.arange(float(length * length)).view(1, 1, length, length)
        if length != 24:
            assert_matches(traced(image), resized(size=(24, 24), mode=mode)(image))
    assert torchmdla.stats().specialisations < 8


# Each size has its own program.
NOT_DYNAMIC = ("a factor that is a power", "a tensor of a size", "a remainder")


@pytest.mark.parametrize("name", NOT_DYNAMIC)
def test_programs_without_dynamic_support_are_compiled_for_each_size(name: str) -> None:
    function, draw, sizes = DECIDED[name]
    scripted = warmed_up(script_copy(function), *draw(sizes[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for size in sizes:
            call_twice(scripted, in_python(function), draw(size))
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.dynamic, stats.fallbacks) == (len(set(sizes)), 0, {})
    assert stats.not_dynamic


def test_a_device_that_leaves_a_group() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x * 2 + y
        x[0] = 5
        w = x * 3 + z
        x[:, 1] += w[:, 1]
        return w, x * 2 + 1

    scripted = warmed_up(torch.jit.script(function), torch.randn(4, 6), torch.randn(4, 6))
    for rows in (5, 6, 7, 8):
        x, y = torch.randn(rows, 6), torch.randn(rows, 6)
        assert_matches(scripted(x.clone(), y), function(x, y))
    assert torchmdla.stats().fallbacks == {}


def test_one_size_less_another() -> None:
    """A condition on two symbols does not follow from conditions on each symbol."""

    def rest(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x[y.size(0) :]) * 2

    scripted = warmed_up(torch.jit.script(rest), torch.randn(80, 3), torch.randn(3))
    for long, short in [(80, 3), (90, 4), (85, 5), (75, 20), (30, 6), (6, 20), (20, 20), (200, 2), (21, 20)]:
        call_twice(scripted, rest, (torch.randn(long, 3), torch.randn(short)))
    assert torchmdla.stats().fallbacks == {}


def test_a_device_without_dynamic_programs(no_dynamic_compiler: list[Program]) -> None:
    scripted = warmed_up(chain, torch.randn(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for size in (5, 6, 7, 8):
            call_twice(scripted, chain, (torch.randn(size, 4),))
    assert [program.symbols for program in no_dynamic_compiler] == [(6,)]
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.dynamic, stats.fallbacks) == (5, 0, {})
    (reason,) = stats.not_dynamic
    assert "no such sizes" in reason


def test_strict_mode_is_about_groups_not_sizes(no_dynamic_compiler: list[Program]) -> None:
    torchmdla.enable(strict=True)
    scripted = warmed_up(chain, torch.randn(4, 4))
    for size in (5, 6, 7):
        call_twice(scripted, chain, (torch.randn(size, 4),))
    assert len(no_dynamic_compiler) == 1


def test_a_smaller_set_of_symbols_after_a_larger_one_failed(programs: list[Program]) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.tanh(x) * (-1) ** x.size(1)

    scripted = warmed_up(torch.jit.script(function), torch.randn(2, 8))
    for batch, width in [(2, 8), (3, 10), (4, 11), (5, 8), (6, 8), (7, 8)]:
        call_twice(scripted, function, (torch.randn(batch, width),))
    assert [program.symbols for program in programs] == [(7,)]
    assert torchmdla.stats().dynamic == 1


def test_an_interrupted_compile_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = warmed_up(chain, torch.randn(4, 4))
    scripted(torch.randn(5, 4))
    x = torch.randn(6, 4)

    with monkeypatch.context() as patch:
        patch.setattr(service, "compile_program", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scripted(x)
    call_twice(scripted, chain, (x,))
    assert torchmdla.stats().dynamic == 1


def test_dynamic_specialisations_count_towards_the_limit() -> None:
    torchmdla.enable(max_specialisations=3)
    scripted = warmed_up(chain, torch.randn(4, 4))
    for size in (5, 6, 7, 8):
        call_twice(scripted, chain, (torch.randn(size, 4),))
    assert torchmdla.stats().fallbacks == {}
    call_twice(scripted, chain, (torch.randn(4, 5, 6),))
    assert torchmdla.stats().fallbacks == {"the group has too many specialisations": 2}
    assert torchmdla.stats().specialisations == 3


# --- eager's behaviour ------------------------------------------------------------------------------------------------


def test_learning_has_no_side_effects() -> None:
    def noisy(x: Tensor) -> Tensor:
        return torch.tanh(torch.nn.functional.interpolate(x, scale_factor=2.0)) * 2

    scripted = warmed_up(noisy, torch.randn(2, 3, 4))
    scripted(torch.randn(3, 3, 4))
    x = torch.randn(4, 3, 4)
    state = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scripted(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert [str(warning.message) for warning in caught] == []
    assert torch.is_grad_enabled()
    assert torchmdla.stats().dynamic == 1


LOADED_AND_DROPPED = """
import gc, io, torch
import torchmdla

saved = io.BytesIO()
layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
torch.jit.save(torch.jit.script(layers), saved)

@torch.no_grad()
def objects(programs):
    for _ in range(programs):
        program = torch.jit.load(io.BytesIO(saved.getvalue()))
        for size in (3, 3, 3, 5, 7):
            program(torch.randn(size, 4))
        del program
    gc.collect()
    return len(gc.get_objects())

before = objects(10)
print((objects(20) - before) / 20, torchmdla.stats().dynamic)
"""


@pytest.mark.sampled(0)
def test_programs_that_are_dropped_leave_nothing() -> None:
    kept_for_each, dynamic = output_of(LOADED_AND_DROPPED).split()
    assert dynamic == "30"
    assert float(kept_for_each) < 5


def test_errors_are_pytorchs_at_any_size() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x @ y) + 1

    weight = torch.randn(4, 4)
    scripted = warmed_up(function, torch.randn(3, 4), weight)
    for size in (5, 6, 7):
        call_twice(scripted, function, (torch.randn(size, 4), weight))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            scripted(torch.randn(8, 5), weight)
    call_twice(scripted, function, (torch.randn(8, 4), weight))


def test_an_index_out_of_bounds_at_another_size() -> None:
    def lookup(table: Tensor, index: Tensor) -> Tensor:
        return torch.embedding(table, index).tanh() * 2

    table = torch.randn(5, 4)
    scripted = warmed_up(lookup, table, torch.tensor([0, 1, 4]))
    for size in (3, 4, 5, 6, 30):
        call_twice(scripted, lookup, (table, torch.randint(5, (size,))))
    assert torchmdla.stats().dynamic == 1
    with pytest.raises(RuntimeError, match=r"index out of range|out of bounds"):
        scripted(table, torch.tensor([0, 1, 2, 3, 4, 5, 6]))


def test_training_at_many_batch_sizes() -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    scripted = torch.jit.trace(net, (torch.randn(4, 8),))
    for batch in (4, 4, 4, 5, 6, 7, 9, 30):
        x = torch.randn(batch, 8)
        gradients = []
        for module in (scripted, net):
            net.zero_grad()
            module(x).square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in net.parameters()])
        assert_matches(*gradients, layers=4)
    assert torchmdla.stats().dynamic >= 1


def test_inference_mode() -> None:
    scripted = warmed_up(LINEAR, torch.randn(4, 12))
    with torch.inference_mode():
        for size in (5, 6, 7):
            x = torch.randn(size, 12)
            result = scripted(x)
            assert result.is_inference()
            assert_matches(result, LINEAR(x), layers=2)
    assert torchmdla.stats().dynamic == 1


def test_weights_that_change_after() -> None:
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    scripted = torch.jit.trace(net, (torch.randn(4, 6),))
    with torch.no_grad():
        for size in (4, 4, 5, 6, 7, 8):
            call_twice(scripted, net, (torch.randn(size, 6),), layers=2)
            for parameter in net.parameters():
                parameter.mul_(1.1)
    assert torchmdla.stats().dynamic == 1


@pytest.fixture(scope="module")
def learnt() -> tuple[Any, Any]:
    """Return a program with reductions, products, joins and slices, compiled for any sizes, and its function."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        product = torch.softmax(x @ y, -1)
        joined = torch.cat([x, product @ y.t(), x[:, :3]], 1)
        return product, joined.transpose(0, 1)[2:7] * 2, (x + 1).mean(0), y.amax(1)

    scripted = warmed_up(function, torch.randn(4, 8), torch.randn(8, 5))
    for m, n in [(5, 6), (7, 9)]:
        scripted(torch.randn(m, 8), torch.randn(8, n))
    return scripted, function


@settings(max_examples=60)
@given(m=st.integers(2, 90), n=st.integers(2, 90))
def test_any_sizes(learnt: tuple[Any, Any], m: int, n: int) -> None:
    scripted, function = learnt
    inputs = torch.randn(m, 8), torch.randn(8, n)
    call_twice(scripted, function, inputs, layers=3)
    assert torchmdla.stats().compiled == 0


# --- threads ----------------------------------------------------------------------------------------------------


def test_threads_with_new_sizes_at_once(programs: list[Program]) -> None:
    scripted = warmed_up(chain, torch.randn(4, 4))
    scripted(torch.randn(5, 4))

    def work(first: int) -> None:
        generator = torch.Generator().manual_seed(first)
        for step in range(20):
            x = torch.randn(6 + (first + step) % 11, 4, generator=generator)
            assert_matches(scripted(x), chain(x))

    assert in_threads(8, work) == []
    assert len(programs) == 1
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.dynamic) == (3, 1)
    assert set(stats.fallbacks) <= {"this specialisation is being compiled"}


def test_in_the_background() -> None:
    scripted = warmed_up(chain, torch.randn(4, 4))
    scripted(torch.randn(5, 4))
    torchmdla.enable(background=True)
    x = torch.randn(6, 4)
    while torchmdla.stats().dynamic == 0:
        assert_matches(scripted(x), chain(x))
    waited = torchmdla.stats().fallbacks
    assert set(waited) <= {"this specialisation is being compiled"}
    call_twice(scripted, chain, (torch.randn(9, 4),))
    assert torchmdla.stats().fallbacks == waited


def test_many_sizes_before_the_first_is_compiled(queue: list[Callable[[], None]]) -> None:
    torchmdla.enable(background=True)
    scripted = warmed_up(chain, torch.randn(4, 4))
    for size in range(5, 25):
        call_twice(scripted, chain, (torch.randn(size, 4),))
    assert len(queue) == 3
    for task in queue:
        task()
    assert torchmdla.stats().specialisations == 3
    assert torchmdla.stats().dynamic == 1


# --- sizes that the program declares as varying -----------------------------------------------------------------------


class Decoder(nn.Module):
    """An attention layer with growing keys and values, whose mask depends on their number."""

    def __init__(self) -> None:
        super().__init__()
        # PyTorch's shape function does not give the strides that attention has for one token of a slice.
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, (k, v) = self.q(x), self.kv(x).chunk(2, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask), (k, v)


FRONTENDS: dict[str, Callable[[nn.Module], Any]] = {
    "script": torch.jit.script,
    "compile": lambda module: torch.compile(module, backend="torchmdla"),
}


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_decoder_has_one_program_for_the_prompt_one_token_and_any_length(
    frontend: str, programs: list[Program]
) -> None:
    module = Decoder().eval()
    program = FRONTENDS[frontend](module)
    with torch.no_grad():
        for _ in range(2):  # PyTorch profiles the first call of a scripted module
            x = torch.randn(1, 5, 8)
            result, expected = program(x), module(x)
            for _ in range(8):
                assert_matches(result, expected, layers=4)
                token = torch.randn(1, 1, 8)
                result, expected = program(token, result[1]), module(token, expected[1])
    assert torchmdla.stats().specialisations == 3
    assert len(programs) == 1


def kept(x: Tensor) -> Tensor:
    scores = torch.sigmoid(x).sum(1)
    high_rows = x[scores > scores.mean()]
    return torch.relu(high_rows * 2) + 1


def found(x: Tensor) -> Tensor:
    places = torch.nonzero(x.sum(1) > 0).squeeze(1)
    return torch.relu(places * 2) + 1


@pytest.mark.parametrize("function", [kept, found])
def test_a_length_that_data_decides_varies_from_the_first_call_on(
    function: Callable[[Tensor], Tensor], programs: list[Program]
) -> None:
    scripted = torch.jit.script(function)
    with torch.no_grad():
        for _ in range(12):
            x = torch.randn(40, 3)
            assert_matches(scripted(x), function(x))
    assert len(programs) == 1
    assert torchmdla.stats().specialisations <= 2
    assert not torchmdla.stats().left_out
