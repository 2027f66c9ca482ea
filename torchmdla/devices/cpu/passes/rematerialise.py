"""Values of a chain that are computed where they are read, since storing and reading them again takes longer.

What a normalisation subtracts a mean from, say, is read twice: for the variance, and for the result. To subtract in
either place takes one pass over a tile less than to store the differences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import Expression, accessing, load, substituted
from torchmdla.devices.cpu.loop_program import LONGEST_BODY, LoopNest, is_elementwise, is_found_by_index

# Instructions that take no longer than half a load; of divisions, roots and functions none is among them.
_CHEAP = frozenset(
    f"arith.{name}"
    for name in (
        "addf", "addi", "andi", "cmpf", "cmpi", "extf", "extsi", "extui", "maximumf", "maxnumf", "minimumf", "minnumf",
        "mulf", "negf", "ori", "select", "sitofp", "subf", "subi", "truncf", "trunci", "uitofp", "xori",
    )
) | {"math.absf", "math.fma"}  # fmt: skip

_CHEAP_COST = 0.5


def rematerialise(members: Sequence[LoopNest], local: Sequence[Buffer]) -> list[LoopNest | None]:
    """The members of a chain with values that are computed where they are read; None in the place of one that nothing
    is left of. ``local``: the buffers that only members use. Whatever the sizes are, the same values are."""
    made: list[LoopNest | None] = list(members)
    passing = set(local)
    reads = [set(member.reads) for member in members]
    # From the last member on: what reads a value then is known when its turn comes.
    for position in reversed(range(len(members))):
        member = made[position]
        if member is None or not _may_move(member, passing):
            continue
        buffer = member.writes[0]
        readers = {k: m for k, m in enumerate(made) if k > position and m is not None and buffer in reads[k]}
        following = [m for m in made[position + 1 : max(readers, default=0) + 1] if m is not None]
        if readers and _is_cheaper(member, len(readers)) and _may_follow(member, following, readers.values()):
            made[position] = None
            for place, reader in readers.items():
                moved = made[place] = _with_maker(reader, member)
                reads[place] = set(moved.reads)
    return made


def _may_move(member: LoopNest, local: Collection[Buffer]) -> bool:
    """Whether a member is no more than a computation of one value that only members use, of all of its buffer, each
    element by the indices of loops, one for each dimension."""
    if not is_elementwise(member) or len(member.outputs) != 1 or member.outputs[0] in member.read_accesses:
        return False
    output = member.outputs[0]
    return output.buffer in local and is_found_by_index(member, output)


def _is_cheaper(member: LoopNest, readers: int) -> bool:
    """Whether ``readers`` nests do better to compute the member's value than to read it. What does not vary along its
    memory is computed once for many elements; a store is hidden by what else the maker does."""
    factors = member.outputs[0].flat(len(member.sizes)).factors
    varying: set[Expression] = set()
    cost = 0.0
    for expression in member.body.expressions:
        if isinstance(expression.payload, Access):
            varies, own_cost = any(factors[loop] == 1 for loop in expression.payload.loops), 1.0
        else:
            varies, own_cost = not varying.isdisjoint(expression.operands), _CHEAP_COST
            if varies and expression.op not in _CHEAP:
                return False
        if varies:
            varying.add(expression)
            cost += own_cost
    return readers * cost <= cost + readers


def _may_follow(member: LoopNest, following: Iterable[LoopNest], readers: Iterable[LoopNest]) -> bool:
    """Return whether all ``readers`` can compute a member's value: as inputs alone, once for each element, while its
    operands are still there, and in kernels that do not become too long. ``following``: the members behind it up to the
    last reader."""
    overwritten = {b for m in following for b in m.writes}
    if overwritten & {*member.reads, *member.writes}:
        return False
    room = LONGEST_BODY - len(member.body.expressions)
    return all(len(reader.body.expressions) <= room and _reads_once(reader, member.writes[0]) for reader in readers)


def _reads_once(reader: LoopNest, buffer: Buffer) -> bool:
    own = [access for access in reader.inputs if access.buffer is buffer]
    others = sum(access.buffer is buffer for access in reader.accesses) - len(own)
    return len(set(own)) == 1 and not others and not own[0].word and reader.walks(own[0])


def _with_maker(reader: LoopNest, maker: LoopNest) -> LoopNest:
    """The reader with the maker's value in the place of what it reads of the maker."""
    read = next(access for access in reader.inputs if access.buffer is maker.writes[0])
    (value,) = accessing(maker.values, lambda access: through(access, maker, read))
    made = replace(reader)
    made.map_body(lambda roots: substituted(roots, {load(read): value}))
    made.nodes |= maker.nodes
    return made


def through(access: Access, maker: LoopNest, read: Access) -> Access:
    """What the maker accesses for the element that another step reads, over that step's loops."""
    along = dict(zip((i.loops[0] if i.loops else -1 for i in maker.outputs[0].indices), read.indices, strict=True))
    return access.along(along, len(read.indices[0].factors) if read.indices else 0)
