"""Programs of TorchScript that use each part of the language, in the manner of PyTorch's own tests of its compiler.

``PROGRAMS`` has a function that makes the module, and the inputs of a call, by name.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Dict, Final, List, NamedTuple, Optional, Tuple, Union  # noqa: UP035 (TorchScript knows these)

import torch
from torch import Tensor, nn


class Colour(Enum):
    """Enumeration of integers."""

    RED = 1
    BLUE = 2


class Word(Enum):
    """Enumeration of strings."""

    HELLO = "hello"
    BYE = "bye"


class Pair(NamedTuple):
    """Named tuple."""

    first: Tensor
    count: int


@torch.jit.interface
class Layer(nn.Module):
    """Interface of a module."""

    def forward(self, x: Tensor) -> Tensor:
        pass


@torch.jit.interface
class Measure:
    """Interface of a class."""

    def measure(self, x: Tensor) -> float:
        pass


@torch.jit.script
class Sum:
    """Class with an interface's method."""

    def __init__(self) -> None:
        self.calls = 0

    def measure(self, x: Tensor) -> float:
        self.calls += 1
        return float(x.sum())


@torch.jit.script
class Counter:
    """Class with state, operators and a context manager."""

    def __init__(self, start: int) -> None:
        self.value = start
        self.log: List[str] = []  # noqa: UP006

    def add(self, count: int = 2) -> int:
        self.value += count
        self.log.append("added {}".format(count))  # noqa: UP032
        return self.value

    def __getitem__(self, index: int) -> int:
        return self.value + index

    def __enter__(self) -> "Counter":
        self.value += 100
        return self

    def __exit__(self, type: Any, value: Any, trace: Any) -> None:
        self.value -= 100


def count_up(x: Tensor, limit: int = 5) -> Tensor:
    for i in range(limit):
        if i % 2 == 0:
            continue
        x = x + i
        if bool(x.sum() > 50):
            break
    return x


def early(x: Tensor, flag: bool) -> Tensor:
    if flag:
        return x * 2
    for i in range(3):
        if x.dim() == i:
            return x + i
    return x - 1


class _Of(nn.Module):
    """Module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = torch.jit.script(function)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Loops(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tuple[Tensor, int]:  # noqa: UP006
        total, rounds = x, 0
        while rounds < n and bool(total.sum() < 100.0):
            for i in range(n):
                for j in range(i, n, 2):
                    if j == 3:
                        continue
                    total = total + i * j
            rounds += 1
        return total, rounds


class Returns(nn.Module):
    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        return early(count_up(x, 4), flag) + count_up(early(x, not flag))


class Optionals(nn.Module):
    def forward(self, x: Tensor, y: Optional[Tensor] = None, n: Optional[int] = None) -> Optional[Tensor]:  # noqa: UP045
        if y is not None and n is not None:
            return x + y * n
        if y is None:
            y = x.relu()
        if n is None:
            n = 3
        return None if n > 100 else y + n


class Lists(nn.Module):
    def forward(self, xs: List[Tensor]) -> Tuple[List[Tensor], List[int], List[List[float]]]:  # noqa: UP006
        sizes = [x.size(0) for x in xs]
        results: List[Tensor] = []  # noqa: UP006
        for i, (x, size) in enumerate(zip(xs, sizes)):  # noqa: B905
            results.append(x[i % size :] * size)
        results.extend([x * 2 for x in xs])
        results.insert(0, xs[-1])
        sizes.sort(reverse=True)
        sizes += [1, 2]
        del sizes[0]
        nested = [[1.0, 2.0], [float(len(xs))]]
        nested[1].append(float("inf"))
        return results[::-1], sorted(sizes), nested


class Dicts(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tuple[int, List[Tensor]]]:  # noqa: UP006
        table: Dict[str, List[Tensor]] = {"a": [x], "b": []}  # noqa: UP006
        table["c"] = [x + 1]
        for key in table.keys():  # noqa: SIM118
            table[key].append(x * len(key))
        counts = {1: "one", 2: "two"}
        if 2 in counts:
            counts.pop(2)
        result: Dict[str, Tuple[int, List[Tensor]]] = {}  # noqa: UP006
        for key, values in table.items():
            result[key + counts[1]] = (len(values), values)
        return result


class Tuples(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Pair, Tuple[int, str], Tensor]:  # noqa: UP006
        pair = Pair(x, 3)
        first, count = pair
        triple = (first, count, "text")
        nested = (triple, pair)
        a, (b, c) = nested[1].count, (nested[0][2], nested[0][0])
        return Pair(c + a, count), (triple[1:][0], b), pair.first


class Strings(nn.Module):
    def forward(self, text: str, x: Tensor) -> Tuple[str, List[str], bool, int]:  # noqa: UP006
        parts = text.split(" ")
        joined = "-".join([part.upper() for part in parts])
        formatted = "{} of {}".format(joined, x.dim()) + "%d|%s" % (3, "é\n\t\"'\\")  # noqa: UP031, UP032
        total = 0
        for letter in text:
            total += ord(letter)
        return formatted, parts, text.startswith("a"), total


class Numbers(nn.Module):
    def forward(self, a: int, b: float, x: Tensor) -> Tuple[float, int, bool, complex, float]:  # noqa: UP006
        c = a // 3 + a % 4 - (a << 2) + (a & 7) * 2
        d = b / a if a != 0 else float("nan")
        e = max(min(a, 10), -5) + int(b) + int(round(b))  # noqa: RUF046
        f = complex(b, 2.0) * 2
        return d + abs(-b) + 1e-30, c + e, a > 3 or not (b < 1 and a == 0), f, float(x.sum()) * 2


class Enums(nn.Module):
    def __init__(self, colour: Colour) -> None:
        super().__init__()
        self.colour = colour

    def forward(self, x: Tensor, word: Word) -> Tuple[Tensor, str, int, bool]:  # noqa: UP006
        if self.colour == Colour.RED:
            x = x + self.colour.value
        return x, word.name + word.value, Colour.BLUE.value, word is not Word.BYE


class Objects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter(3)

    def forward(self, x: Tensor) -> Tuple[Tensor, List[str]]:  # noqa: UP006
        local = Counter(x.dim())
        local.add()
        with local as entered:
            self.counter.add(entered.value)
        self.counter.value = self.counter.value + local[2]
        return x * self.counter.value, self.counter.log


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


class Interfaces(nn.Module):
    layer: Layer
    measure: Measure

    def __init__(self) -> None:
        super().__init__()
        self.layer = Plain()
        self.measure = Sum()

    def forward(self, x: Tensor) -> Tuple[Tensor, float]:  # noqa: UP006
        measure: Measure = self.measure
        return self.layer(x), measure.measure(x)


class Containers(nn.Module):
    limit: Final[int]
    names: List[str]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)])
        self.table = nn.ModuleDict({"up": nn.Linear(3, 4), "down": nn.Identity()})
        self.sequence = nn.Sequential(nn.LayerNorm(3), nn.Tanh())
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
        self.limit = 2
        self.names = ["x", "y"]
        self.scales = {"x": 0.5}
        self.register_buffer("mean", torch.arange(3.0), persistent=False)
        self.register_buffer("nothing", None)
        self.missing: Optional[Tensor] = None  # noqa: UP045

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x) + index
        for name, layer in self.table.items():
            if name == "down":
                x = layer(x)
        if self.missing is not None:
            x = x + self.missing
        for name in self.names:
            x = x * self.scales.get(name, 2.0)
        return self.sequence(x) + self.mean * self.limit

    @torch.jit.export
    def both(self, x: Tensor) -> List[Tensor]:  # noqa: UP006
        return [self.forward(x), self.table["up"](x)]

    @torch.jit.unused
    def unused(self, x: Tensor) -> Tensor:
        return eval("x")


class Mutation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 3))
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.state + x
        self.state[0] = 1.0
        self.state[:, 1:] += x[:, 1:]
        self.state[x > 0] = -1.0
        x[0, 1] = 5
        self.steps += 1
        y = self.state.view(-1)
        y.add_(self.steps)
        return y


class Indexing(nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: UP006
        return x[..., 0], x[None, 1:, :2:2], x[index, -1], x[[0, 1], [1, 0]]


class Unions(nn.Module):
    def forward(self, x: Union[int, List[int], Tensor]) -> Tensor:  # noqa: UP006, UP007
        if isinstance(x, int):
            return torch.full([2], x)
        if isinstance(x, Tensor):
            return x * 2
        return torch.tensor(x)


class Anys(nn.Module):
    def forward(self, x: Any) -> Any:
        if isinstance(x, str):
            return len(x)
        if isinstance(x, int):
            return x + 1
        return x


class Errors(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        assert x.dim() > 0, f"{x.dim()} dimensions"
        if n < 0:
            raise ValueError("negative: " + str(n))
        elif n > 10:
            raise RuntimeError("large")
        else:
            y = x + n
        try_later: List[int] = []  # noqa: UP006
        if n == 7:
            try_later.pop()
        return y


class Forks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first = torch.jit.fork(count_up, x, 3)
        second = torch.jit.fork(early, x, True)
        waiting = [torch.jit.fork(count_up, x, i) for i in range(3)]
        total = torch.jit.wait(first) + torch.jit.wait(second)
        for future in waiting:
            total = total + torch.jit.wait(future)
        return total


class Devices(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, torch.device, int, bool]:  # noqa: UP006
        y = torch.zeros([2, 3], dtype=torch.float64, device=torch.device("cpu"))
        z = x.to("cpu", torch.float16).to(y).contiguous(memory_format=torch.contiguous_format)
        return z + torch.rand_like(y), x.device, x.dtype, x.is_cuda or x.requires_grad


class Constants(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, List[int], str, Tuple[int, float]]:  # noqa: UP006
        return x + torch.tensor([1.0, 2.0, 3.0]) * -1, [1, -2], "naïve", (3, -0.5)


class State(nn.Module):
    """Module whose state is saved by methods."""

    def __init__(self) -> None:
        super().__init__()
        self.values = [1, 2, 3]
        self.ready = False
        self.training = True

    @torch.jit.export
    def __getstate__(self) -> Tuple[List[int], bool]:  # noqa: UP006
        return self.values, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[List[int], bool]) -> None:  # noqa: UP006
        self.values, self.training = state
        self.ready = True

    def forward(self, x: Tensor) -> Tensor:
        return x + self.values[0] + int(self.ready)


class Properties(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._scale = 2.0

    @property
    def scale(self) -> float:
        return self._scale

    @scale.setter
    def scale(self, value: float) -> None:
        self._scale = value

    def forward(self, x: Tensor) -> Tensor:
        self.scale = self.scale + 1
        return x * self.scale


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

        def before(self: Any, inputs: Tuple[Tensor]) -> Tuple[Tensor]:  # noqa: UP006
            return (inputs[0] + 1,)

        def after(self: Any, inputs: Tuple[Tensor], output: Tensor) -> Tensor:  # noqa: UP006
            return output * 2

        self.inner.register_forward_pre_hook(before)
        self.inner.register_forward_hook(after)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Prints(nn.Module):
    def forward(self, x: Tensor) -> List[List[int]]:  # noqa: UP006
        print("sum", x.sum(), 1.5, [1])
        values: List[List[int]] = x.to(torch.int64).tolist()  # noqa: UP006
        return values


X = torch.arange(6.0).view(2, 3) - 2

PROGRAMS: Mapping[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "loops": (Loops, (X, 4)),
    "returns": (Returns, (X,)),
    "function": (lambda: _Of(count_up), (X,)),
    "optionals": (Optionals, (X,)),
    "lists": (Lists, ([X, X + 1],)),
    "dicts": (Dicts, (X,)),
    "tuples": (Tuples, (X,)),
    "strings": (Strings, ("a bc d", X)),
    "numbers": (Numbers, (7, 2.5, X)),
    "enums": (lambda: Enums(Colour.RED), (X, Word.HELLO)),
    "objects": (Objects, (X,)),
    "interfaces": (Interfaces, (X,)),
    "containers": (Containers, (X,)),
    "mutation": (Mutation, (X,)),
    "indexing": (Indexing, (X, torch.tensor([1, 0]))),
    "unions": (Unions, (3,)),
    "anys": (Anys, (3,)),
    "errors": (Errors, (X, 3)),
    "forks": (Forks, (X,)),
    "devices": (Devices, (X,)),
    "constants": (Constants, (X,)),
    "state": (State, (X,)),
    "properties": (Properties, (X,)),
    "hooked": (Hooked, (X,)),
    "prints": (Prints, (X,)),
    "gru": (lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True), (X,)),
    "lstm": (lambda: nn.LSTM(3, 4, batch_first=True), (X[None],)),
    "attention": (lambda: nn.MultiheadAttention(4, 2), (torch.ones(2, 1, 4),) * 3),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 8).eval(), (torch.ones(2, 1, 4),)),
    "batch_norm": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()), (torch.ones(2, 1, 5, 5),)),
    "embedding": (lambda: nn.EmbeddingBag(10, 3), (torch.tensor([[1, 2]]),)),
    "quantised": (
        lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), dtype=torch.qint8),
        (X,),
    ),
}
