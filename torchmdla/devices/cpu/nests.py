"""What a kernel computes: a loop nest over flat buffers, free of MLIR objects.

Every access is linear in the loop indices, so an operand is a base pointer and one stride per loop; two steps that do
the same to different buffers give equal nests, and equal nests become one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# How scalars lie in memory: bool is one byte, and an index is 64 bits wide on every target.
_STORED = {"i1": "i8", "index": "i64"}

# Bytes of every element type that kernels may touch.
ELEMENT_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}


class NotANestError(Exception):
    """The op is no nest of linear accesses around a straight-line body; it is lowered by upstream's passes."""


def stored(element: str) -> str:
    """The element type in memory of a value of type ``element``.

    Raises:
        NotANestError: values of this type have no place in a kernel's memory.
    """
    kept = _STORED.get(element, element)
    if kept not in ELEMENT_BYTES:
        raise NotANestError(f"element type {element}")
    return kept


def computed(element: str) -> str:
    """The type in registers of a value of MLIR type ``element``."""
    return "i64" if element == "index" else element


@dataclass(frozen=True)
class Operand:
    """One buffer: the type of its elements in registers (``i1`` lies in memory as ``i8``), and an element stride
    for each loop."""

    element: str
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """A buffer that the body reads at computed indices: its sizes and element strides."""

    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Instruction:
    """One op of the body, with one result. Values are numbered: inputs, outputs, scalars, then results in order.

    ``name`` is the MLIR op's, or ``"index"`` (``payload``: the loop), ``"load"`` (``payload``: the table; the
    operands are its indices), or ``"assert"`` (its operand must be true, or the call fails).
    """

    name: str
    operands: tuple[int, ...]
    result: str
    attributes: str = ""
    payload: int = -1


@dataclass(frozen=True)
class Epilogue:
    """What a nest with a reduction does to its results while they are in registers, before anything is stored.

    Values are numbered: the nest's reduced outputs, ``inputs``, ``scalars``, then the results of ``body`` in order.
    ``outputs`` are stored instead of the nest's own outputs, of which none is. All strides are over the nest's loops,
    0 for loops that reduce.
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[str, ...]
    body: tuple[Instruction, ...]
    yields: tuple[int, ...]


@dataclass(frozen=True)
class Nest:
    """``inputs`` and ``outputs`` enter the body as its first values, then ``scalars`` (types of values fixed over
    the nest). The body's ``yields`` are the outputs' new values. Loops marked in ``reduction`` carry the outputs, from
    the constant ``initial`` on if there is one, from what lies in memory otherwise. With an ``epilogue`` the outputs
    are not stored, and ``initial`` must be set.

    A kernel's operands are pointers: to ``operands``, to ``tables``, to ``scalars`` (the nest's, then the epilogue's),
    and to a status if the nest may fail."""

    sizes: tuple[int, ...]
    reduction: tuple[bool, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[str, ...]
    tables: tuple[Table, ...]
    body: tuple[Instruction, ...]
    yields: tuple[int, ...]
    initial: Instruction | None = None
    epilogue: Epilogue | None = None

    @property
    def accumulates(self) -> bool:
        """Whether outputs have values before they are stored: also where all loops that reduce had one iteration."""
        return any(self.reduction) or self.initial is not None or self.epilogue is not None

    @property
    def may_fail(self) -> bool:
        """Whether the kernel reports a status: it checks indices or conditions."""
        body = self.body + (self.epilogue.body if self.epilogue else ())
        return bool(self.tables) or any(i.name == "assert" for i in body)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The buffers that the kernel touches at the loops' indices, in the order of its pointers."""
        if self.epilogue:
            return self.inputs + self.epilogue.inputs + self.epilogue.outputs
        return self.inputs + self.outputs


def simplified(nest: Nest) -> Nest:
    """The nest without loops of one iteration, and with those joined that walk memory as one."""
    drop = [d for d, size in enumerate(nest.sizes) if size == 1 and d not in _indexed(nest)]
    nest = _keep_loops(nest, [d for d in range(len(nest.sizes)) if d not in drop])
    while (pair := _joinable(nest)) is not None:
        nest = _join(nest, *pair)
    return nest


def _indexed(nest: Nest) -> set[int]:
    """Loops whose index the body uses as a value."""
    body = nest.body + (nest.epilogue.body if nest.epilogue else ())
    return {i.payload for i in body if i.name == "index"}


def _joinable(nest: Nest) -> tuple[int, int] | None:
    loops = [d for d in range(len(nest.sizes)) if d not in _indexed(nest)]
    for outer in loops:
        for inner in loops:
            if outer != inner and nest.reduction[outer] == nest.reduction[inner]:
                size = nest.sizes[inner]
                if all(o.strides[outer] == o.strides[inner] * size for o in nest.operands):
                    return outer, inner
    return None


def _join(nest: Nest, outer: int, inner: int) -> Nest:
    sizes = list(nest.sizes)
    sizes[inner] *= sizes[outer]
    return _keep_loops(replace(nest, sizes=tuple(sizes)), [d for d in range(len(sizes)) if d != outer])


def _keep_loops(nest: Nest, kept: list[int]) -> Nest:
    renumber = {old: new for new, old in enumerate(kept)}

    def narrowed(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(o, strides=tuple(o.strides[d] for d in kept)) for o in operands)

    def renumbered(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(replace(i, payload=renumber[i.payload]) if i.name == "index" else i for i in body)

    epilogue = nest.epilogue
    if epilogue is not None:
        inputs, outputs = narrowed(epilogue.inputs), narrowed(epilogue.outputs)
        epilogue = replace(epilogue, inputs=inputs, outputs=outputs, body=renumbered(epilogue.body))
    return replace(
        nest,
        sizes=tuple(nest.sizes[d] for d in kept),
        reduction=tuple(nest.reduction[d] for d in kept),
        inputs=narrowed(nest.inputs),
        outputs=narrowed(nest.outputs),
        body=renumbered(nest.body),
        epilogue=epilogue,
    )
