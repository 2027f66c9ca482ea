"""The functions that instrumented code calls, as MLIR text.

``mdla_load`` and ``mdla_store`` return the address to use for an access of a number of bytes. ``…_bytes`` return the
number of bytes of a run to access. ``…_lanes_…`` and ``…_row_…`` return the lanes to access: lanes at separate
addresses, or adjacent lanes. A record has three ``i64``: the start of a buffer, its end, and the address of its name.
"""

from __future__ import annotations

from collections.abc import Callable

FAULT = "mdla_fault"
SET_RECORD = "mdla_set_record"
RECORD_IN = "mdla_record_in"
ANYWHERE = "mdla_anywhere"
STACK = "mdla_stack"

# The functions that mark pointers and return the outcome. The written code declares them. The instrumentation removes
# the first and defines the second.
MARK = "mdla_mark"
OUTCOME = "mdla_outcome"
_DECLARED = (
    f"llvm.func @{MARK}(!llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr",
    f"llvm.func @{OUTCOME}(i32) -> i32",
)

RECORD = "!llvm.struct<(i64, i64, i64)>"
# A pointer in an array of operands, and its record.
SLOT = "!llvm.struct<(ptr, ptr)>"

# The size of the spare memory for accesses outside their buffers: more than a vector.
_SPARE_BYTES = 256
_TEXT_BYTES = 512
_MESSAGE = "internal error: %s %s %lld bytes at offset %lld of %s, which has %lld bytes"

# The verb in messages for each kind of access.
_KINDS = {"load": "reads", "store": "writes", "claim": "lays out"}


def support_text(attributes: str) -> str:
    """Return all support functions except those for lanes.

    ``attributes`` are the functions' attributes, as MLIR text.
    """
    parts = [global_text(f"@mdla_{kind}_verb", verb) for kind, verb in _KINDS.items()]
    parts += [global_text("@mdla_message", _MESSAGE), global_text("@mdla_nothing", "nothing")]
    parts += [global_text(f"@{STACK}", "memory of its own"), _COMMON]
    parts += [_BYTES.replace("{kind}", kind) for kind in _KINDS]
    parts += [_ADDRESS.replace("{kind}", kind) for kind in ("load", "store")]
    return "\n".join(parts).replace("{attributes}", attributes)


def lanes_text(kind: str, lanes: int, size: int, attributes: str) -> str:
    """Return the functions for ``lanes`` lanes of ``size`` bytes each."""
    numbers = str([lane * size for lane in range(lanes)])
    places = {"kind": kind, "n": str(lanes), "size": str(size), "numbers": numbers, "attributes": attributes}
    text = _LANES
    for name, value in places.items():
        text = text.replace("{" + name + "}", value)
    return text


_COMMON = (
    """
llvm.func @snprintf(!llvm.ptr, i64, !llvm.ptr, ...) -> i32

// 0: nothing was touched outside; 1: a thread writes the message; 2: it is there.
llvm.mlir.global internal @mdla_state(0 : i32) {alignment = 4 : i64} : i32
llvm.mlir.global internal @mdla_text() : !llvm.array<$TEXT x i8> {
  %zero = llvm.mlir.zero : !llvm.array<$TEXT x i8>
  llvm.return %zero : !llvm.array<$TEXT x i8>
}
// Zeros to read, and what may be overwritten.
llvm.mlir.global internal constant @mdla_load_spare() {alignment = 64 : i64} : !llvm.array<$SPARE x i8> {
  %zero = llvm.mlir.zero : !llvm.array<$SPARE x i8>
  llvm.return %zero : !llvm.array<$SPARE x i8>
}
llvm.mlir.global internal @mdla_store_spare() {alignment = 64 : i64} : !llvm.array<$SPARE x i8> {
  %zero = llvm.mlir.zero : !llvm.array<$SPARE x i8>
  llvm.return %zero : !llvm.array<$SPARE x i8>
}
// The records of a pointer that nobody stored, and of one of memory that the caller answers for.
llvm.mlir.global internal constant @mdla_no_record() : $RECORD {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %name = llvm.mlir.addressof @mdla_nothing : !llvm.ptr
  %number = llvm.ptrtoint %name : !llvm.ptr to i64
  %r0 = llvm.mlir.zero : $RECORD
  %r1 = llvm.insertvalue %number, %r0[2] : $RECORD
  llvm.return %r1 : $RECORD
}
llvm.mlir.global internal constant @mdla_anywhere() : $RECORD {
  %all = llvm.mlir.constant(-1 : i64) : i64
  %name = llvm.mlir.addressof @mdla_nothing : !llvm.ptr
  %number = llvm.ptrtoint %name : !llvm.ptr to i64
  %r0 = llvm.mlir.zero : $RECORD
  %r1 = llvm.insertvalue %all, %r0[1] : $RECORD
  %r2 = llvm.insertvalue %number, %r1[2] : $RECORD
  llvm.return %r2 : $RECORD
}

llvm.func internal @mdla_outside(%verb: !llvm.ptr, %address: i64, %bytes: i64, %record: !llvm.ptr, %function: !llvm.ptr)
    attributes {passthrough = ["noinline", "cold"]} {
  %zero = llvm.mlir.constant(0 : i32) : i32
  %one = llvm.mlir.constant(1 : i32) : i32
  %two = llvm.mlir.constant(2 : i32) : i32
  %state = llvm.mlir.addressof @mdla_state : !llvm.ptr
  %pair = llvm.cmpxchg %state, %zero, %one acq_rel monotonic : !llvm.ptr, i32
  %first = llvm.extractvalue %pair[1] : !llvm.struct<(i32, i1)>
  llvm.cond_br %first, ^tell, ^end
^tell:
  %r = llvm.load %record : !llvm.ptr -> $RECORD
  %low = llvm.extractvalue %r[0] : $RECORD
  %high = llvm.extractvalue %r[1] : $RECORD
  %number = llvm.extractvalue %r[2] : $RECORD
  %name = llvm.inttoptr %number : i64 to !llvm.ptr
  %offset = llvm.sub %address, %low : i64
  %size = llvm.sub %high, %low : i64
  %text = llvm.mlir.addressof @mdla_text : !llvm.ptr
  %room = llvm.mlir.constant($TEXT : i64) : i64
  %format = llvm.mlir.addressof @mdla_message : !llvm.ptr
  %written = llvm.call @snprintf(%text, %room, %format, %function, %verb, %bytes, %offset, %name, %size)
      vararg(!llvm.func<i32 (ptr, i64, ptr, ...)>)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr, i64) -> i32
  llvm.store %two, %state atomic release {alignment = 4 : i64} : i32, !llvm.ptr
  llvm.br ^end
^end:
  llvm.return
}

llvm.func @mdla_fault() -> !llvm.ptr {
  %zero = llvm.mlir.constant(0 : i32) : i32
  %two = llvm.mlir.constant(2 : i32) : i32
  %state = llvm.mlir.addressof @mdla_state : !llvm.ptr
  %old = llvm.atomicrmw xchg %state, %zero acq_rel : !llvm.ptr, i32
  %is_there = llvm.icmp "eq" %old, %two : i32
  %text = llvm.mlir.addressof @mdla_text : !llvm.ptr
  %empty = llvm.mlir.addressof @mdla_load_spare : !llvm.ptr
  %told = llvm.select %is_there, %text, %empty : i1, !llvm.ptr
  llvm.return %told : !llvm.ptr
}

llvm.func internal @mdla_outcome(%status: i32) -> i32 {
  %zero = llvm.mlir.constant(0 : i32) : i32
  %address = llvm.mlir.addressof @mdla_state : !llvm.ptr
  %state = llvm.load %address atomic acquire {alignment = 4 : i64} : !llvm.ptr -> i32
  %kept = llvm.icmp "eq" %state, %zero : i32
  %outcome = llvm.select %kept, %status, %state : i1, i32
  llvm.return %outcome : i32
}

// Bytes from `address` on, as far as they lie inside of the record `outer`.
llvm.func internal @mdla_set_record(%record: !llvm.ptr, %pointer: !llvm.ptr, %bytes: i64, %name: !llvm.ptr,
    %outer: !llvm.ptr, %function: !llvm.ptr) {attributes} {
  %low = llvm.ptrtoint %pointer : !llvm.ptr to i64
  %kept = llvm.call @mdla_claim_bytes(%pointer, %bytes, %outer, %function)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i64
  %high = llvm.add %low, %kept : i64
  %number = llvm.ptrtoint %name : !llvm.ptr to i64
  %r0 = llvm.mlir.poison : $RECORD
  %r1 = llvm.insertvalue %low, %r0[0] : $RECORD
  %r2 = llvm.insertvalue %high, %r1[1] : $RECORD
  %r3 = llvm.insertvalue %number, %r2[2] : $RECORD
  llvm.store %r3, %record : $RECORD, !llvm.ptr
  llvm.return
}

// The record beside a pointer.
llvm.func internal @mdla_record_in(%slot: !llvm.ptr) -> !llvm.ptr {attributes} {
  %place = llvm.getelementptr %slot[0, 1] : (!llvm.ptr) -> !llvm.ptr, $SLOT
  %record = llvm.load %place : !llvm.ptr -> !llvm.ptr
  %null = llvm.mlir.zero : !llvm.ptr
  %missing = llvm.icmp "eq" %record, %null : !llvm.ptr
  %none = llvm.mlir.addressof @mdla_no_record : !llvm.ptr
  %found = llvm.select %missing, %none, %record : i1, !llvm.ptr
  llvm.return %found : !llvm.ptr
}

llvm.func internal @mdla_is_inside(%low: i64, %bytes: i64, %record: !llvm.ptr) -> i1 {attributes} {
  %r = llvm.load %record : !llvm.ptr -> $RECORD
  %begin = llvm.extractvalue %r[0] : $RECORD
  %end = llvm.extractvalue %r[1] : $RECORD
  %high = llvm.add %low, %bytes : i64
  %a = llvm.icmp "uge" %low, %begin : i64
  %b = llvm.icmp "ule" %high, %end : i64
  %c = llvm.icmp "ule" %low, %high : i64
  %ab = llvm.and %a, %b : i1
  %abc = llvm.and %ab, %c : i1
  llvm.return %abc : i1
}
""".replace("$RECORD", RECORD)
    .replace("$SLOT", SLOT)
    .replace("$SPARE", str(_SPARE_BYTES))
    .replace("$TEXT", str(_TEXT_BYTES))
)

_ADDRESS = """
llvm.func internal @mdla_{kind}(%pointer: !llvm.ptr, %bytes: i64, %record: !llvm.ptr, %function: !llvm.ptr)
    -> !llvm.ptr {attributes} {
  %low = llvm.ptrtoint %pointer : !llvm.ptr to i64
  %inside = llvm.call @mdla_is_inside(%low, %bytes, %record) : (i64, i64, !llvm.ptr) -> i1
  llvm.cond_br %inside, ^inside, ^outside
^inside:
  llvm.return %pointer : !llvm.ptr
^outside:
  %verb = llvm.mlir.addressof @mdla_{kind}_verb : !llvm.ptr
  llvm.call @mdla_outside(%verb, %low, %bytes, %record, %function)
      : (!llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr) -> ()
  %spare = llvm.mlir.addressof @mdla_{kind}_spare : !llvm.ptr
  llvm.return %spare : !llvm.ptr
}
"""

_BYTES = """
llvm.func internal @mdla_{kind}_bytes(%pointer: !llvm.ptr, %bytes: i64, %record: !llvm.ptr, %function: !llvm.ptr)
    -> i64 {attributes} {
  %low = llvm.ptrtoint %pointer : !llvm.ptr to i64
  %inside = llvm.call @mdla_is_inside(%low, %bytes, %record) : (i64, i64, !llvm.ptr) -> i1
  llvm.cond_br %inside, ^inside, ^outside
^inside:
  llvm.return %bytes : i64
^outside:
  %verb = llvm.mlir.addressof @mdla_{kind}_verb : !llvm.ptr
  llvm.call @mdla_outside(%verb, %low, %bytes, %record, %function)
      : (!llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr) -> ()
  %none = llvm.mlir.constant(0 : i64) : i64
  llvm.return %none : i64
}
"""

_LANES = """
llvm.func internal @mdla_{kind}_lanes_{n}x{size}(%addresses: vector<{n}xi64>, %mask: vector<{n}xi1>,
    %record: !llvm.ptr, %function: !llvm.ptr) -> vector<{n}xi1> {attributes} {
  %end_place = llvm.getelementptr %record[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %begin = llvm.load %record : !llvm.ptr -> i64
  %end = llvm.load %end_place : !llvm.ptr -> i64
  %begins = vector.broadcast %begin : i64 to vector<{n}xi64>
  %ends = vector.broadcast %end : i64 to vector<{n}xi64>
  %size = arith.constant {size} : i64
  %sizes = vector.broadcast %size : i64 to vector<{n}xi64>
  %highs = arith.addi %addresses, %sizes : vector<{n}xi64>
  %a = arith.cmpi uge, %addresses, %begins : vector<{n}xi64>
  %b = arith.cmpi ule, %highs, %ends : vector<{n}xi64>
  %inside = arith.andi %a, %b : vector<{n}xi1>
  %every = arith.constant dense<true> : vector<{n}xi1>
  %not_inside = arith.xori %inside, %every : vector<{n}xi1>
  %outside = arith.andi %mask, %not_inside : vector<{n}xi1>
  %any = vector.reduction <or>, %outside : vector<{n}xi1> into i1
  scf.if %any {
    %none = arith.constant dense<-1> : vector<{n}xi64>
    %those = arith.select %outside, %addresses, %none : vector<{n}xi1>, vector<{n}xi64>
    %least = vector.reduction <minui>, %those : vector<{n}xi64> into i64
    %verb = llvm.mlir.addressof @mdla_{kind}_verb : !llvm.ptr
    llvm.call @mdla_outside(%verb, %least, %size, %record, %function)
        : (!llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr) -> ()
  }
  %kept = arith.andi %mask, %inside : vector<{n}xi1>
  llvm.return %kept : vector<{n}xi1>
}

llvm.func internal @mdla_{kind}_row_{n}x{size}(%pointer: !llvm.ptr, %mask: vector<{n}xi1>,
    %record: !llvm.ptr, %function: !llvm.ptr) -> vector<{n}xi1> {attributes} {
  %low = llvm.ptrtoint %pointer : !llvm.ptr to i64
  %lows = vector.broadcast %low : i64 to vector<{n}xi64>
  %distances = arith.constant dense<{numbers}> : vector<{n}xi64>
  %addresses = arith.addi %lows, %distances : vector<{n}xi64>
  %kept = llvm.call @mdla_{kind}_lanes_{n}x{size}(%addresses, %mask, %record, %function)
      : (vector<{n}xi64>, vector<{n}xi1>, !llvm.ptr, !llvm.ptr) -> vector<{n}xi1>
  llvm.return %kept : vector<{n}xi1>
}
"""


# Marks of pointers: the size and the name of the memory that begins at the pointer.


class Marks:
    """Writer of marks into functions, and of the names that they use into the module."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def mark(self, define: Callable[[str], str], pointer: str, size: str, name: str) -> str:
        """Return ``pointer``, marked as the start of ``size`` bytes.

        ``define`` adds an op to the function and returns the name of its result.
        """
        symbol = self._names.setdefault(name, f'@"{name}"')
        label = define(f"llvm.mlir.addressof {symbol} : !llvm.ptr")
        return define(f"llvm.call @{MARK}({pointer}, {size}, {label}) : (!llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr")

    def outcome(self, define: Callable[[str], str], status: str) -> str:
        """Return ``status``, or an error status if an access was outside its buffer."""
        return define(f"llvm.call @{OUTCOME}({status}) : (i32) -> i32")

    @property
    def declarations(self) -> list[str]:
        """Return the declarations and globals that the module needs for its marks."""
        return [*_DECLARED, *(global_text(symbol, name) for name, symbol in self._names.items())]


def global_text(symbol: str, text: str) -> str:
    """Return a global of the module that holds a C string."""
    return f'llvm.mlir.global internal constant {symbol}("{text}\\00")'
