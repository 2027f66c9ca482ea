"""Programs of instructions: tensors in storages, the steps that compute them, and their places in memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .library import MAP, NUMBER, PRODUCT, RANK, REDUCE, Instruction, Operand, maps, reductions

Shape = tuple[int, ...]

ALIGNMENT = 16  # elements: 64 bytes


@dataclass(eq=False)
class Storage:
    """Memory of a tensor.

    Attributes:
        elements: number of its elements, of 4 bytes each.
        place: number of its buffer in a call of the entry; None for a temporary.
        varies: whether its contents depend on inputs, not on parameters and constants alone.
    """

    elements: int
    place: int | None = None
    varies: bool = False


@dataclass(frozen=True)
class Tensor:
    """View of a storage. ``strides`` and ``offset`` count elements."""

    storage: Storage
    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def is_dense(self) -> bool:
        return all(
            size == 1 or stride == dense
            for size, stride, dense in zip(self.shape, self.strides, strides_of(self.shape), strict=True)
        )

    def with_shape(self, shape: Shape) -> Tensor:
        """Return a dense tensor with other sizes."""
        return replace(self, shape=shape, strides=strides_of(shape))

    def permuted(self, dims: Sequence[int]) -> Tensor:
        return replace(
            self, shape=tuple(self.shape[dim] for dim in dims), strides=tuple(self.strides[dim] for dim in dims)
        )

    def expanded(self, shape: Shape) -> Tensor:
        """Return the tensor broadcast to ``shape``, which may have more dimensions in front; -1 keeps a size."""
        more = len(shape) - len(self.shape)
        sizes, strides = (1,) * more + self.shape, (0,) * more + self.strides
        wanted = tuple(old if new == -1 else new for old, new in zip(sizes, shape, strict=True))
        steps = tuple(0 if old == 1 else step for old, step in zip(sizes, strides, strict=True))
        return replace(self, shape=wanted, strides=steps)

    def sliced(self, dim: int, begin: int, size: int, step: int = 1) -> Tensor:
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + begin * strides[dim]
        shape[dim], strides[dim] = size, strides[dim] * step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def windows(self, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
        """Return the windows over the last dimensions: the shape ends in their positions, then in the kernel's."""
        count = len(kernel)
        positions = tuple(
            (size - (k - 1) * d - 1) // s + 1
            for size, k, s, d in zip(self.shape[-count:], kernel, stride, dilation, strict=True)
        )
        steps = self.strides[-count:]
        moved = tuple(step * s for step, s in zip(steps, stride, strict=True))
        spread = tuple(step * d for step, d in zip(steps, dilation, strict=True))
        return replace(
            self,
            shape=self.shape[:-count] + positions + tuple(kernel),
            strides=self.strides[:-count] + moved + spread,
        )


@dataclass
class Step:
    """An instruction, before its operands have places."""

    kind: int
    function: int
    sizes: Shape
    reduced: int
    result: Tensor
    operands: Sequence[Tensor | float]

    def reads(self) -> list[Storage]:
        return [operand.storage for operand in self.operands if isinstance(operand, Tensor)]


def strides_of(shape: Sequence[int]) -> Shape:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


@dataclass
class Code:
    """Steps of a program, in order."""

    steps: list[Step] = field(default_factory=list)

    def empty(self, shape: Shape) -> Tensor:
        return Tensor(Storage(math.prod(shape)), shape, strides_of(shape))

    def map(self, function: str, *operands: Tensor | float, into: Tensor | None = None) -> Tensor:
        """Compute an elementwise function of operands that are broadcast to one shape."""
        shapes = [operand.shape for operand in operands if isinstance(operand, Tensor)]
        result = into or self.empty(broadcast(shapes))
        aligned = [x.expanded(result.shape) if isinstance(x, Tensor) else x for x in operands]
        return self._add(MAP, maps()[function], result.shape, 0, result, aligned)

    def reduce(self, function: str, tensor: Tensor, dims: Iterable[int], keep: bool = False) -> Tensor:
        """Reduce over ``dims``, which become dimensions of size 1 if ``keep`` is true."""
        gone = {dim % len(tensor.shape) for dim in dims}
        rest = [dim for dim in range(len(tensor.shape)) if dim not in gone]
        source = tensor.permuted([*rest, *sorted(gone)])
        result = self.empty(tuple(tensor.shape[dim] for dim in rest))
        written = replace(result, strides=result.strides + (0,) * len(gone))
        self._add(REDUCE, reductions()[function], source.shape, len(gone), written, [source])
        shape = tuple(1 if dim in gone else size for dim, size in enumerate(tensor.shape))
        return result.with_shape(shape) if keep else result

    def product(self, sizes: Shape, result: Tensor, left: Tensor, right: Tensor) -> None:
        """Compute sums of products over eight loops: four over rows, one over columns, three that are summed.

        The strides of the three tensors are those of the loops.
        """
        self._add(PRODUCT, 0, sizes, 0, result, [left, right])

    def dense(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself if it is contiguous, else a copy."""
        return tensor if tensor.is_dense else self.map("copy", tensor)

    def _add(
        self, kind: int, function: int, sizes: Shape, reduced: int, result: Tensor, operands: Sequence[Tensor | float]
    ) -> Tensor:
        if len(sizes) > RANK:
            raise NotImplementedError(f"{len(sizes)} loops; the device has {RANK}")
        step = Step(kind, function, sizes, reduced, result, operands)
        result.storage.varies |= any(storage.varies for storage in step.reads())
        self.steps.append(step)
        return result


def broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes), default=0)
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in columns)


def steps_for(steps: Sequence[Step], wanted: Collection[Storage]) -> list[Step]:
    """Return the steps that compute the contents of storages."""
    needed, chosen = set(wanted), []
    for step in reversed(steps):
        if step.result.storage in needed:
            chosen.append(step)
            needed.update(step.reads())
    return chosen[::-1]


@dataclass(frozen=True)
class Encoded:
    """Instructions as bytes, and the number of bytes of workspace that they need."""

    code: bytes
    workspace: int


def encode(steps: Sequence[Step], places: Mapping[Storage, int]) -> Encoded:
    """Return the steps in the form of mychip.h. Storages that are not in ``places`` are put into the workspace."""
    offsets, elements = _workspace(steps, places)

    def operand(value: Tensor | float) -> Operand:
        if not isinstance(value, Tensor):
            return Operand(NUMBER, 0, (ctypes.c_int64 * RANK)(), float(value))
        place, begin = places.get(value.storage, 0), offsets.get(value.storage, 0)
        return Operand(place, begin + value.offset, _padded(value.strides, 0), 0.0)

    instructions = (
        Instruction(
            step.kind,
            step.function,
            step.reduced,
            _padded(step.sizes, 1),
            operand(step.result),
            (Operand * 3)(*map(operand, [*step.operands, 0.0, 0.0][:3])),
        )
        for step in steps
    )
    return Encoded(b"".join(map(bytes, instructions)), 4 * elements)


def _padded(values: Sequence[int], more: int) -> ctypes.Array[ctypes.c_int64]:
    numbers: ctypes.Array[ctypes.c_int64] = (ctypes.c_int64 * RANK)(*[more] * (RANK - len(values)), *values)
    return numbers


def _workspace(steps: Sequence[Step], places: Mapping[Storage, int]) -> tuple[dict[Storage, int], int]:
    """Return the offsets of temporaries, which share memory if they are not in use together, and the end of all."""
    last = {storage: number for number, step in enumerate(steps) for storage in (*step.reads(), step.result.storage)}
    offsets: dict[Storage, int] = {}
    live: list[Storage] = []
    end = 0
    for number, step in enumerate(steps):
        storage = step.result.storage
        live = [other for other in live if last[other] >= number]
        if storage in places or storage in offsets:
            continue
        begin = 0
        for other in sorted(live, key=offsets.__getitem__):
            if offsets[other] - begin >= storage.elements:
                break
            begin = max(begin, offsets[other] + -(-other.elements // ALIGNMENT) * ALIGNMENT)
        offsets[storage] = begin
        live.append(storage)
        end = max(end, begin + storage.elements)
    return offsets, end
