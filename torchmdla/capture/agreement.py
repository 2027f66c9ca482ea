"""What records of one group at several sizes have in common: everything but numbers, and these are polynomials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchmdla.capture.subgraph import Subgraph
from torchmdla.compiler.sizes import Size, at, fit
from torchmdla.errors import CompileError
from torchmdla.importer import Record, TensorMeta

# Of all symbols.
Values = tuple[int, ...]

# Whether a record is what the records at other values of the symbols tell of it.
Agreement = Callable[[Record, Values], bool]

# What must be equal at all sizes, and the numbers, of a recorded value.
_Described = tuple[object, list[int]]
_Expected = Mapping[str, tuple[object, list[int | Size]]]

# Ops that may do something else at single values of a number, so that what they do at two tells nothing of those
# between: on numbers, and on tensors with numbers that vary.
_ERRATIC_ON_NUMBERS = frozenset({"aten::remainder", "aten::fmod", "aten::eq", "aten::ne"})
_ERRATIC_BY_NUMBERS = frozenset({"aten::roll", "aten::rot90"})


def polynomial_record(subgraph: Subgraph, points: Sequence[Values], records: Sequence[Record]) -> Agreement:
    """Learns a group's record at any sizes from ``records`` at ``points``.

    Every size of every value counts, and every integer, so that no op behaves in another way unnoticed; the strides of
    the outputs too. Floats do not: they are results of the call's own.

    Raises:
        CompileError: something but numbers differs between the records, or may at sizes between theirs.
        NoPolynomial: a number is no polynomial of the symbols.
    """
    outputs = set(subgraph.outputs)
    expected: dict[str, tuple[object, list[int | Size]]] = {}
    for name in records[0]:
        seen = [_described(record[name], name in outputs) for record in records]
        kind = seen[0][0]
        if any(other != kind for other, _ in seen):
            raise CompileError(f"value %{name} is of another kind")
        expected[name] = kind, [fit(points, numbers) for numbers in zip(*(numbers for _, numbers in seen), strict=True)]
    _refuse_erratic(subgraph, records[0], expected)

    def agrees(record: Record, values: Values) -> bool:
        for name, (kind, numbers) in expected.items():
            now = [at(number, values) for number in numbers]
            if _described(record[name], name in outputs) != (kind, now):
                return False
            # An empty tensor may need other code than others (a maximum of nothing is an error).
            if isinstance(record[name], TensorMeta) and any(
                isinstance(number, Size) and size < 1 for number, size in zip(numbers, now, strict=True)
            ):
                return False
        return True

    return agrees


def _described(seen: object, with_strides: bool) -> _Described:
    if isinstance(seen, TensorMeta):
        strides = seen.strides if with_strides else ()
        return (seen.dtype, len(seen.shape)), [*seen.shape, *strides]
    if isinstance(seen, list | tuple):
        parts = [_described(item, with_strides) for item in seen]
        return [kind for kind, _ in parts], [number for _, numbers in parts for number in numbers]
    if type(seen) is int:
        return int, [seen]
    return (float, []) if isinstance(seen, float) else (seen, [])


def _refuse_erratic(subgraph: Subgraph, record: Record, expected: _Expected) -> None:
    """Follows numbers, and the 0-d tensors that ``prim::NumToTensor`` makes of them, through the graph.

    Raises:
        CompileError: an op may treat a number that varies in another way at some values.
    """
    numbers = {name for name, seen in record.items() if _is_number(seen)}
    varying = {name for name in numbers if any(isinstance(number, Size) for number in expected[name][1])}
    for step in subgraph.steps():
        inputs, outputs = step.inputs, step.outputs
        if step.op == "aten::roll" and _varies_where_rolled(inputs, record, expected):
            raise CompileError("it may depend on single sizes: aten::roll")
        of_numbers = numbers.issuperset(inputs)
        if of_numbers:
            numbers.update(name for name in outputs if _is_0d(record[name]))
        if varying.isdisjoint(inputs):
            continue
        if of_numbers:
            varying.update(name for name in outputs if _is_0d(record[name]) or isinstance(record[name], float))
        erratic = _ERRATIC_ON_NUMBERS if of_numbers else _ERRATIC_BY_NUMBERS
        if step.op in erratic and not _always_equal(step.op, [expected[name] for name in inputs]):
            raise CompileError(f"it may depend on single sizes: {step.op}")


def _varies_where_rolled(inputs: Sequence[str], record: Record, expected: _Expected) -> bool:
    """Whether a dimension varies that is rolled, by the shift modulo its size; any counts where none are told."""
    sizes = expected[inputs[0]][1][: len(record[inputs[0]].shape)]  # type: ignore[attr-defined]
    dims = record.get(inputs[2]) if len(inputs) > 2 else None
    rolled = [sizes[dim] for dim in dims] if isinstance(dims, list | tuple) and dims else sizes
    return any(isinstance(size, Size) for size in rolled)


def _is_number(seen: object) -> bool:
    if isinstance(seen, list | tuple):
        return all(_is_number(item) for item in seen)
    return not isinstance(seen, TensorMeta)


def _is_0d(seen: object) -> bool:
    return isinstance(seen, TensorMeta) and not seen.shape


def _always_equal(op: str, operands: Sequence[tuple[object, list[int | Size]]]) -> bool:
    """Whether a comparison is of sizes that are the same polynomial."""
    comparison = op in ("aten::eq", "aten::ne")
    return (
        comparison
        and all(kind in (int, [int] * len(sizes)) for kind, sizes in operands)
        and (operands[0][1] == operands[1][1])
    )
