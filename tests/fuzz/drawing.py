"""Random programs as text, drawn from seeds. Each statement is run with eager before it is added."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from fuzz import families, registry, rewriting
from fuzz import vocabulary as words
from fuzz.families import NothingFits
from fuzz.text import HEAD, Input, Text
from torchmdla.testing.programs.inputs import draw_inputs


@dataclass(frozen=True)
class Kind:
    """Kind of programs: the statements that they contain, and their calls.

    Attributes:
        help: the purpose of the kind.
        statements: the least and the largest number of statements.
        weights: weights of the kinds of statements by name: :data:`_TEMPLATES` or a ``_draw_`` method.
        calls: the number of calls.
        wrapped: the probability that two cheap operators follow a statement, so that it is in a group.
        is_rewritten: whether the frontend gets an equivalent program that is written differently.
        is_trained: whether it takes steps of an optimiser.
        dtypes: weights of the dtypes of inputs. If it is empty, :data:`_DTYPES` is used.
        any_value: whether results may be of any magnitude, infinite, or NaN.
    """

    help: str
    statements: tuple[int, int]
    weights: Mapping[str, int]
    calls: int
    wrapped: float = 0.35
    is_rewritten: bool = False
    is_trained: bool = False
    dtypes: Mapping[str, int] = field(default_factory=dict)
    any_value: bool = False


_ALL_DTYPES = (*("uint8", "int8", "int16", "int32", "int64", "bool"), *("float16", "bfloat16", "float32", "float64"))

KINDS: Mapping[str, Kind] = {
    "sizes": Kind(
        "sizes used as values, indices, paddings, exponents, bounds; one program at many sizes",
        (2, 5),
        {"integer": 2, "sized": 14, "common": 2, "view": 1, "write": 1, "control": 1},
        14,
        wrapped=0.8,
    ),
    "graphs": Kind(
        "every operator, views, writes in place, control flow",
        (4, 14),
        {"integer": 1, "sized": 3, "common": 4, "operator": 10, "view": 3, "write": 4, "control": 2},
        9,
    ),
    "families": Kind(
        "softmax, norms, attention, convolutions, recurrences, quantised products along any dimension",
        (2, 6),
        {"family": 12, "common": 2, "view": 2, "write": 1, "control": 1},
        9,
    ),
    "rewrites": Kind(
        "the same program reordered, split, batched, transposed, with eager's values of the first",
        (3, 9),
        {"integer": 1, "sized": 3, "common": 5, "operator": 8, "view": 2},
        9,
        is_rewritten=True,
    ),
    "numbers": Kind(
        "numbers and 0-d tensors of every kind beside tensors of every dtype",
        (1, 4),
        {"number": 12, "view": 2, "integer": 1},
        7,
        wrapped=0.2,
        dtypes=dict.fromkeys(_ALL_DTYPES, 1),
        any_value=True,
    ),
    "checks": Kind(
        "indices and probabilities, some of which eager refuses", (1, 3), {"checked": 10, "common": 2, "view": 1}, 12
    ),
    "training": Kind(
        "parameters, which steps of an optimiser change",
        (3, 8),
        {"trained": 8, "sized": 2, "common": 6, "operator": 6, "view": 3},
        1,
        is_trained=True,
    ),
}

# Kinds of statements that are templates. They are filled and assigned. The other kinds have a method.
_TEMPLATES: Mapping[str, Sequence[str]] = {
    "sized": words.OF_SIZES,
    "common": words.COMMON,
    "number": words.OF_NUMBERS,
    "trained": words.TRAINED,
    "checked": words.CHECKED,
}

# Options of torchmdla.enable and environment variables. One program in four has options, and one in four variables.
_OPTIONS: tuple[tuple[str, Any], ...] = (
    *(("dynamic", False), ("max_specialisations", 1), ("memory_limit", 1), ("memory_limit", 100_000)),
    *(("background", True), ("algorithms", "winograd"), ("algorithms", "direct"), ("tuned", False)),
    *(("processor", "x86-64-v2"), ("processor", "x86-64-v3")),
)
_ENVIRONMENT = (("TORCHMDLA_CHECK_BOUNDS", "1"), ("TORCHMDLA_COMPILE_IN_PROCESS", "1"), ("TORCHMDLA_VERIFY", "1"))

# Weights of the frontends. The seed determines the frontend, unless the command line specifies frontends.
_FRONTENDS = {
    "torchscript:script": 10,
    "torchscript:trace": 5,
    "dynamo:compile": 4,
    "export:export": 1,
    "dispatch:capture": 1,
    "lazy:step": 2,
    "acap:device": 2,
}

# These frontends support only the sizes of the inputs that they were captured with.
_STATIC = frozenset({"export:export", "dispatch:capture"})
# These frontends capture one run, and keep its branches.
_ONE_RUN = frozenset({"torchscript:trace", *_STATIC})
# These frontends run a statement when its value is read.
_DEFERRED = frozenset({"lazy:step", "acap:device"})

_DTYPES = {**dict.fromkeys(_ALL_DTYPES, 1), "float32": 14, "float64": 2, "int64": 3, "bfloat16": 2}
_LAYOUTS = {
    "{}": 14, "transposed({})": 2, "strided({})": 2, "offset({})": 1, "repeated({})": 1, "overlapping({})": 1
}  # fmt: skip
# For overlapping inputs, PyTorch's fake tensors have other strides than its kernels, so a view may become a copy
# (aot_eager).
_FAKED = ("export:", "dynamo:")
# Layouts for programs that may be called with other layouts than they were captured with.
_ANY_LAYOUT = {**_LAYOUTS, "varied({})": 2}

# Larger values would make rounding errors too large for any comparison.
_LARGEST_VALUE = 1e4
_LARGEST_TENSOR = 50_000
_ATTEMPTS = 12


# TorchScript's own derivatives (torch/csrc/jit/runtime/symbolic_script.cpp) differ from eager's. The limits of clamp
# have no derivative. The derivative of pow by the exponent is NaN if the base is zero. The derivative of softplus
# compares the result with the threshold. leaky_relu's slope is float32.
_WRONG_DERIVATIVE = re.compile(r"\bclamp\(\w+, \w*[a-z]|\b(pow|softplus|leaky_relu)\(")


def draw(kind: str, seed: int, way: str) -> Text:
    """Return the program of a kind of :data:`KINDS` and a seed for a frontend. It is the same each time."""
    return _Drawing(KINDS[kind], Random(f"{kind}:{seed}:{way}"), way).text()


def draw_frontend(seed: int) -> str:
    """Return the default frontend of a seed."""
    return _weighted(Random(seed), _FRONTENDS)


# Expressions that draw the parameters of families, by kind. Other kinds are names of float dtypes.
_PARAMETERS = {
    "float32": "normal({})",
    "positive": "positive({})",
    "int8": "integers({}, low=-128, high=128, dtype=torch.int8)",
    "int4": "integers({}, low=-8, high=8, dtype=torch.int8)",
}


@dataclass(frozen=True)
class _OfDrawing(families.Source):
    """Source of a program's tensors as operands of families. Families may add inputs to the program."""

    random: Random
    find: Callable[[], Sequence[families.Operand]]
    add: Callable[[str, Sequence[str]], str]

    def number(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def operands(self) -> Sequence[families.Operand]:
        return self.find()

    def parameter(self, kind: str, *sizes: str) -> str:
        return self.add(kind, sizes)


class _Drawing:
    """State of one program while it is drawn: its statements, and their values at a few sizes."""

    def __init__(self, kind: Kind, random: Random, way: str) -> None:
        self._kind, self._random, self._way = kind, random, way
        self._with_gradients = kind.is_trained or (random.random() < 0.12 and not kind.is_rewritten)
        self._inputs: list[Input] = []
        self._parameters: list[Input] = []
        self._body: list[str] = []
        self._sizes = self._learned()
        self._envs: list[dict[str, Any]] = []
        self._count = 0

    def text(self) -> Text:
        """Draw statements and results, and return the program."""
        for _ in range(self._random.randint(1, 2)):
            self._add_input()
        if self._way not in _ONE_RUN and self._random.random() < 0.25:
            self._inputs.append(Input("flag", "n % 2 == 0", "bool"))
        if self._way not in _ONE_RUN and self._random.random() < 0.25:
            self._inputs.append(Input("number", self._random.choice(["n", "n // 2", "n % 3", "m - 3"]), "int"))
        if self._way not in _ONE_RUN and self._kind.any_value:
            self._inputs.append(Input("real", self._random.choice(["n * 0.3", "2.5 - n", "float(2**n)"]), "float"))
        for name in ("p1", "p2")[: 2 * self._kind.is_trained]:
            self._parameters.append(Input(name, f"normal({self._random.choice(('4', '7', '4, 7', '7, 4'))})"))
        self._run()
        least, most = self._kind.statements
        for _ in range(self._random.randint(least, most)):
            self._add_statement()
        if not self._tensors():
            self._add_input()
        text = Text(
            self._way,
            tuple(self._inputs),
            tuple(self._body),
            (self._loss(),) if self._kind.is_trained else tuple(self._results()),
            self._series(),
            "training" if self._kind.is_trained else "gradients" if self._with_gradients else "inference",
            parameters=tuple(self._parameters),
            options=self._chosen(_OPTIONS),
            environment=self._chosen(_ENVIRONMENT),
        )
        return rewriting.rewritten(text, self._random, self._tensors()) if self._kind.is_rewritten else text

    def _chosen(self, pairs: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        count = self._random.choice((0,) * 6 + (1, 2))
        return tuple(dict(self._random.sample(pairs, count)).items())

    # --- sizes -------------------------------------------------------------------------------------------------

    def _learned(self) -> list[tuple[int, int]]:
        """Return four different sizes.

        PyTorch profiles with the first. After three more, a program is compiled for any sizes.
        """
        among = range(34, 71) if self._random.random() < 0.7 else range(3, 20)
        sizes = self._random.sample(among, 4)
        others = self._random.sample(range(5, 12), 4) if self._random.random() < 0.2 else [7] * 4
        return list(zip(sizes, others, strict=True))

    def _series(self) -> tuple[tuple[int, int], ...]:
        """Return sizes that are likely to fail: small, prime, and near powers of two or numbers of the program."""
        if self._way in _STATIC:
            return (self._sizes[0],) * 3
        numbers = {int(word) for line in self._body for word in re.findall(r"\b\d{1,2}\b", line)}
        # Numbers that sizes are compared with, or that are subtracted from them. Smaller ones are dimensions or counts.
        turns = sorted(number for number in numbers if number > 5)
        around = [
            number + offset for number in turns for offset in (-number // 2, -7, -1, 0, 1) if number + offset >= 0
        ]
        usual = [
            0,
            1,
            2,
            3,
            5,
            7,
            11,
            13,
            23,
            61,
            *(2**power + offset for power in range(2, 7) for offset in (-1, 0, 1)),
        ]
        series = list(self._sizes)
        while len(series) < self._kind.calls:
            n = self._random.choice(around if around and self._random.random() < 0.6 else usual)
            # The second call with the same sizes runs compiled code.
            series += [(n, self._random.choice([7, 7, 7, 7, 2, 1, 8, n]))] * self._random.randint(1, 2)
        series = series[: self._kind.calls]
        if self._random.random() < 0.1:
            self._random.shuffle(series)
        return tuple(series)

    # --- running the statements -----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Compute all values again at each size."""
        self._envs = []
        for number, (n, m) in enumerate(self._sizes):
            env: dict[str, Any] = dict(_GLOBALS)
            values = draw_inputs(
                tuple(eval(argument.draw, {**_GLOBALS, "n": n, "m": m}) for argument in self._inputs), number
            )
            env.update(zip((argument.name for argument in self._inputs), values, strict=True))
            parameters = draw_inputs(tuple(eval(argument.draw, _GLOBALS) for argument in self._parameters), 0)
            env.update(zip((argument.name for argument in self._parameters), parameters, strict=True))
            self._envs.append(env)
        for statement in self._body:
            self._execute(statement)

    def _execute(self, statement: str) -> None:
        code = compile(statement, "<statement>", "exec")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for env in self._envs:
                exec(code, env)

    def _keep(self, statement: str, is_write: bool = False) -> bool:
        """Append a statement if it runs and its values are usable. Return whether it was appended."""
        if self._with_gradients and self._way.startswith("torchscript") and _WRONG_DERIVATIVE.search(statement):
            return False
        torch.default_generator.manual_seed(0)
        before = set(self._envs[0])
        try:
            self._execute(statement)
            good = all(_is_of_use(tensor, self._kind.any_value) for tensor in self._tensors_of(self._envs))
        except Exception:
            good = False
        if good:
            self._body.append(statement)
            return True
        if is_write:
            self._run()
        for env in self._envs:
            for name in set(env) - before:
                del env[name]
        return False

    def _tensors_of(self, envs: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        return [value for env in envs for value in env.values() if isinstance(value, Tensor)]

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors at the first sizes, by name."""
        return {name: value for name, value in self._envs[0].items() if isinstance(value, Tensor)}

    # --- statements -----------------------------------------------------------------------------------------------

    def _add_statement(self) -> None:
        for _ in range(_ATTEMPTS):
            name, count = _weighted(self._random, self._kind.weights), len(self._inputs)
            with contextlib.suppress(NothingFits):
                statement = self._statement(name)
                if self._keep(statement, is_write=name in ("write", "control")):
                    self._take_apart(statement.partition(" = ")[0])
                    return
            self._forget_inputs(count)

    def _forget_inputs(self, count: int) -> None:
        """Remove all inputs after the first ``count``."""
        for argument in self._inputs[count:]:
            for env in self._envs:
                del env[argument.name]
        del self._inputs[count:]

    def _take_apart(self, name: str) -> None:
        """Add a statement that selects an element if the value is a list or tuple."""
        values = self._envs[0].get(name)
        if isinstance(values, list | tuple) and values:
            self._keep(f"{self._new('v')} = {name}[{self._random.randrange(len(values))}]")

    def _statement(self, name: str) -> str:
        """Draw a statement of a kind of :attr:`Kind.weights`."""
        if name in _TEMPLATES:
            return self._assigned(self._filled(self._random.choice(_TEMPLATES[name])))
        statement: str = getattr(self, f"_draw_{name}")()
        return statement

    def _draw_integer(self) -> str:
        return f"{self._new('i')} = {self._integer()}"

    def _draw_family(self) -> str:
        if not self._operands():
            self._add_input(f"normal({', '.join(self._random.choice(words.SHAPES))})")
        return self._assigned(families.draw(_OfDrawing(self._random, self._operands, self._parameter)))

    def _operands(self) -> list[families.Operand]:
        """Return the float tensors whose sizes are n, m or numbers."""
        known = {tuple(n for n, _ in self._sizes): "n", tuple(m for _, m in self._sizes): "m"}
        operands = []
        for name, value in self._tensors().items():
            along = list(zip(*(env[name].shape for env in self._envs), strict=True))
            sizes = tuple(known.get(extents, str(extents[0])) for extents in along)
            if value.is_floating_point() and all(extents in known or len(set(extents)) == 1 for extents in along):
                operands.append(families.Operand(name, sizes, str(value.dtype).removeprefix("torch.")))
        return operands

    def _parameter(self, kind: str, sizes: Sequence[str]) -> str:
        self._add_input(_PARAMETERS.get(kind, "normal({}, dtype=torch." + kind + ")").format(", ".join(sizes)))
        return self._inputs[-1].name

    def _draw_view(self) -> str:
        return f"{self._new('v')} = {self._filled(self._random.choice(words.VIEWS))}"

    def _draw_write(self) -> str:
        if self._with_gradients:
            raise NothingFits
        return self._filled(self._random.choice(words.WRITES))

    def _draw_operator(self) -> str:
        return self._assigned(registry.call(self._random, self._found))

    def _draw_control(self) -> str:
        if self._way in _ONE_RUN:
            raise NothingFits
        name = self._new("v")
        conditions = words.CONDITIONS_OF_SIZES if self._random.random() < 0.7 else words.CONDITIONS_OF_DATA
        condition = self._filled(self._random.choice(conditions))
        if any(argument.name == "flag" for argument in self._inputs) and self._random.random() < 0.5:
            condition = "flag"
        parts = {
            "v": name,
            "condition": condition,
            "a": self._filled(self._random.choice([*words.COMMON[:10], *words.OF_SIZES[:20]])),
            "b": self._filled(self._random.choice(words.COMMON[:10])),
            "u": self._filled(self._random.choice(words.STEPS).replace("{v}", name)),
        }
        return self._filled(self._random.choice(words.CONTROL), parts)

    def _assigned(self, expression: str) -> str:
        if self._random.random() < self._kind.wrapped:
            expression = f"({expression}) * 2 + 1"
        return f"{self._new('v')} = {expression}"

    def _new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # --- filling templates ----------------------------------------------------------------------------------------

    def _filled(self, template: str, presets: Mapping[str, str] | None = None) -> str:
        places: Mapping[str, Callable[[], str]] = {
            "f": lambda: self._tensor(torch.is_floating_point),
            "g": lambda: self._tensor(torch.is_floating_point),
            "t": lambda: self._tensor(lambda _: True),
            "q": lambda: self._tensor(lambda x: x.dtype in (torch.int64, torch.int32)),
            "i": self._integer_used,
            "j": self._integer_used,
            "n": self._size,
            "k": lambda: str(self._random.randint(2, 5)),
            "c": lambda: str(self._random.choice(words.TURNS)),
            "d": lambda: self._random.choice(["0", "0", "1", "-1"]),
            "s": lambda: self._filled(self._random.choice(words.SCALARS)),
            "z": self._number,
            "y": lambda: self._random.choice(self._parameters).name,
            "p": lambda: self._added(self._random.choice(words.INDICES)),
            "w": lambda: self._added(self._random.choice(words.PROBABILITIES)),
        }
        chosen: dict[str, str] = dict(presets or {})

        def fill(match: re.Match[str]) -> str:
            place = match[1]
            # A letter is the same tensor throughout a template. Numbers are drawn for each place.
            if place in chosen:
                return chosen[place]
            value = places[place]()
            if place in "ftgqijpwz":
                chosen[place] = value
            return value

        return re.sub(r"\{(\w+)\}", fill, template)

    def _tensor(self, fits: Callable[[Tensor], bool]) -> str:
        names = [name for name, value in self._tensors().items() if fits(value)]
        if not names:
            raise NothingFits
        # Most programs use the latest value next.
        return names[-1] if self._random.random() < 0.4 else self._random.choice(names)

    def _size(self) -> str:
        if any(argument.name == "number" for argument in self._inputs) and self._random.random() < 0.3:
            return "number"
        sized = {name: value for name, value in self._tensors().items() if value.dim()}
        if not sized:
            raise NothingFits
        name = self._random.choice(list(sized))
        return f"{name}.size({self._random.randrange(sized[name].dim())})"

    def _integer_used(self) -> str:
        names = [name for name in self._envs[0] if re.fullmatch(r"i\d+", name)]
        return self._random.choice(names) if names and self._random.random() < 0.6 else f"({self._integer()})"

    def _integer(self) -> str:
        templates = words.TRACED_INTEGERS if self._way in _ONE_RUN else words.INTEGERS
        names = [name for name in self._envs[0] if re.fullmatch(r"i\d+", name)]
        fitting = [candidate for candidate in templates if names or "{i}" not in candidate]
        if self._way.startswith("dynamo"):  # torch.compile itself computes (-1) ** n wrongly, with any backend.
            fitting = [candidate for candidate in fitting if "**" not in candidate]
        template = self._random.choice(fitting)
        return self._filled(template, {"i": self._random.choice(names)} if names else None)

    def _found(self, sample: Tensor, sizes: tuple[str, ...]) -> str:
        """Return a tensor for an operator's argument: an existing tensor of these sizes, or a new input."""
        wanted = [tuple(int(size) if size.isdecimal() else n for size in sizes) for n, _ in self._sizes]
        names = [
            name
            for name, value in self._tensors().items()
            if value.dtype == sample.dtype
            and all(tuple(env[name].shape) == shape for env, shape in zip(self._envs, wanted, strict=True))
        ]
        expression = registry.draw_like(sample, sizes)
        # Other tensors do not fit indices and arguments of logarithms.
        if names and expression.startswith("normal") and self._random.random() < 0.85:
            return self._random.choice(names)
        return self._added(expression)

    def _number(self) -> str:
        names = [argument.name for argument in self._inputs if argument.type in ("int", "float")]
        if names and self._random.random() < 0.3:
            return self._random.choice(names)
        if self._random.random() < 0.4:
            return self._added(_drawn_so("", self._random.choice(_ALL_DTYPES)))
        return self._random.choice(words.NUMBERS)

    def _added(self, expression: str) -> str:
        """Add an input and return its name."""
        self._add_input(expression)
        return self._inputs[-1].name

    # --- inputs and results ---------------------------------------------------------------------------------------

    def _add_input(self, expression: str | None = None) -> None:
        name = self._new("x")
        if expression is None:
            shape = "".join(f"{size}, " for size in self._random.choice(words.SHAPES))
            expression = _drawn_so(shape, _weighted(self._random, self._kind.dtypes or _DTYPES))
            layouts = _LAYOUTS if self._way in _STATIC else _ANY_LAYOUT
            if self._way.startswith(_FAKED):
                layouts = {**layouts, "overlapping({})": 0}
            expression = _weighted(self._random, layouts).format(expression)
        self._inputs.append(Input(name, expression))
        for number, (env, (n, m)) in enumerate(zip(self._envs, self._sizes, strict=False)):
            (env[name],) = draw_inputs((eval(expression, {**_GLOBALS, "n": n, "m": m}),), number)

    def _loss(self) -> str:
        """Return the sum of all parameters and results as an expression."""
        floats = [name for name, value in self._tensors().items() if value.is_floating_point()]
        wanted = [name for name in self._results() if name in floats]
        return " + ".join(f"{name}.double().square().mean()" for name in dict.fromkeys([*wanted, "p1", "p2"]))

    def _results(self) -> list[str]:
        """Return the unused values and one more value."""
        names = list(self._tensors())
        assigned = [line.partition(" = ")[::2] for statement in self._body for line in statement.splitlines()]
        # Uses of a value in its own statement, and uses of its sizes, do not count.
        unused = [
            name
            for name in names
            if not any(re.search(rf"\b{name}\b(?!\.size\()", value) for to, value in assigned if to.strip() != name)
        ]
        candidates = [name for name in unused if name.startswith("v")] or names[-1:]
        # Deferred frontends do not raise the errors of values that are not read.
        retained = candidates if self._way in _DEFERRED else candidates[-4:]
        return list(dict.fromkeys([*retained, self._random.choice(names)]))


_GLOBALS: dict[str, Any] = {}
exec(HEAD, _GLOBALS)
_GLOBALS.pop("__builtins__", None)


def _drawn_so(shape: str, dtype: str) -> str:
    """Return the text that draws a tensor of a dtype. ``shape`` ends with a comma, or is empty."""
    if dtype == "bool":
        return f"booleans({shape.removesuffix(', ')})"
    if "int" in dtype:
        return f"integers({shape}high=5, dtype=torch.{dtype})"
    return f"normal({shape.removesuffix(', ')})" if dtype == "float32" else f"normal({shape}dtype=torch.{dtype})"


def _is_of_use(tensor: Tensor, any_value: bool) -> bool:
    if tensor.numel() > _LARGEST_TENSOR:
        return False
    if any_value or not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(tensor.isfinite().all()) and float(tensor.abs().max()) < _LARGEST_VALUE


def _weighted(random: Random, weights: Mapping[str, int]) -> str:
    return random.choices(list(weights), list(weights.values()))[0]
