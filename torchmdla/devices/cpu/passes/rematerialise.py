"""Rematerialisation of values in a chain, where storing and reading them again takes longer than computing them.

For example, a normalisation uses the differences from a mean twice: for the variance, and for the result. Subtracting
in both places takes one pass over a tile less than storing the differences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import Expression, load, map_loads, substitute
from torchmdla.devices.cpu.ir.loop_program import MAX_BODY_OPERATIONS, LoopNest, is_elementwise, is_permutation

# Instructions that take no longer than half a load. Divisions, roots and functions are not among them.
_CHEAP = frozenset(
    f"arith.{name}"
    for name in (
        "addf", "addi", "andi", "cmpf", "cmpi", "extf", "extsi", "extui", "maximumf", "maxnumf", "minimumf", "minnumf",
        "mulf", "negf", "ori", "select", "sitofp", "subf", "subi", "truncf", "trunci", "uitofp", "xori",
    )
) | {"math.absf", "math.fma"}  # fmt: skip

_CHEAP_COST = 0.5


def rematerialise(members: Sequence[LoopNest], local: Sequence[Buffer]) -> list[LoopNest | None]:
    """Return the members of a chain, with values computed where they are read.

    The decision does not depend on sizes.

    Args:
        members: The members of the chain.
        local: The buffers that only members use.

    Returns:
        The members, with None in the place of each member that was removed.
    """
    results: list[LoopNest | None] = list(members)
    passing = set(local)
    reads = [set(member.reads) for member in members]
    # From the last member on, so that all readers of a value are final when its turn comes.
    for position in reversed(range(len(members))):
        member = results[position]
        if member is None or not _may_move(member, passing):
            continue
        buffer = member.writes[0]
        readers = {k: m for k, m in enumerate(results) if k > position and m is not None and buffer in reads[k]}
        following = [m for m in results[position + 1 : max(readers, default=0) + 1] if m is not None]
        if readers and _is_cheaper(member, len(readers)) and _may_follow(member, following, readers.values()):
            results[position] = None
            for place, reader in readers.items():
                moved = results[place] = _inline_producer(reader, member)
                reads[place] = set(moved.reads)
    return results


def _may_move(member: LoopNest, local: Collection[Buffer]) -> bool:
    """Return whether a member only computes one value that only members use, for all elements of its buffer.

    Each dimension of the buffer has to be indexed by its own loop.
    """
    if not is_elementwise(member) or len(member.outputs) != 1 or member.outputs[0] in member.read_accesses:
        return False
    output = member.outputs[0]
    return output.buffer in local and is_permutation(member, output)


def _is_cheaper(member: LoopNest, readers: int) -> bool:
    """Return whether it is cheaper for ``readers`` nests to compute the member's value than to read it.

    A value that does not vary along the innermost dimension is computed once for many elements. The producer's other
    work hides the time of a store.
    """
    factors = member.outputs[0].linearise(len(member.sizes)).factors
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
    """Return whether all ``readers`` can compute a member's value.

    They have to read it only as an input, once for each element, while its operands are not yet overwritten. Their
    kernels must not become too long. ``following`` are the members after it, up to the last reader.
    """
    overwritten = {b for m in following for b in m.writes}
    if overwritten & {*member.reads, *member.writes}:
        return False
    room = MAX_BODY_OPERATIONS - len(member.body.expressions)
    return all(len(reader.body.expressions) <= room and _reads_once(reader, member.writes[0]) for reader in readers)


def _reads_once(reader: LoopNest, buffer: Buffer) -> bool:
    reads = [access for access in reader.inputs if access.buffer is buffer]
    others = sum(access.buffer is buffer for access in reader.accesses) - len(reads)
    return len(set(reads)) == 1 and not others and not reads[0].word and reader.is_indexed_by_all_loops(reads[0])


def _inline_producer(reader: LoopNest, producer: LoopNest) -> LoopNest:
    """Return a copy of the reader in which the producer's value replaces the load of the producer's result."""
    read = next(access for access in reader.inputs if access.buffer is producer.writes[0])
    (value,) = map_loads(producer.values, lambda access: operand_access(access, producer, read))
    fused = replace(reader)
    fused.map_body(lambda roots: substitute(roots, {load(read): value}))
    fused.nodes |= producer.nodes
    return fused


def operand_access(access: Access, producer: LoopNest, read: Access) -> Access:
    """Return the producer's access for the element that another step reads as ``read``, over that step's loops."""
    along = dict(zip((i.loops[0] if i.loops else -1 for i in producer.outputs[0].indices), read.indices, strict=True))
    return access.substitute(along, len(read.indices[0].factors) if read.indices else 0)
