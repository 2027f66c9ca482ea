"""Restricted unpickler of TorchScript's archives. It executes no code: a fixed table has all functions and opcodes.

Pickles describe plain values, tensors and objects of the archive's classes. The checks at the end refuse cycles, and
values that are deeply nested or grow when shared parts are written out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from torchmdla.errors import ReadError
from torchmdla.script.archive import Archive
from torchmdla.script.conformance import Conformance
from torchmdla.script.ir import Class, EnumValue, Object, Quantisation, Storage, StoredTensor

# Deepest nesting of containers and objects, and most values when shared containers are written out.
_DEPTH_LIMIT, _EXPANDED_LIMIT = 500, 50_000_000
_INT_LIMIT = 1 << 63

# The dtype and the bytes of an element for each kind of storage.
STORAGES: Mapping[str, tuple[str, int]] = {
    "ByteStorage": ("uint8", 1),
    "CharStorage": ("int8", 1),
    "ShortStorage": ("int16", 2),
    "IntStorage": ("int32", 4),
    "LongStorage": ("int64", 8),
    "HalfStorage": ("float16", 2),
    "FloatStorage": ("float32", 4),
    "DoubleStorage": ("float64", 8),
    "ComplexHalfStorage": ("complex32", 4),
    "ComplexFloatStorage": ("complex64", 8),
    "ComplexDoubleStorage": ("complex128", 16),
    "BoolStorage": ("bool", 1),
    "BFloat16Storage": ("bfloat16", 2),
    "QInt8Storage": ("qint8", 1),
    "QUInt8Storage": ("quint8", 1),
    "QInt32Storage": ("qint32", 4),
    "Float8_e5m2Storage": ("float8_e5m2", 1),
    "Float8_e4m3fnStorage": ("float8_e4m3fn", 1),
    "Float8_e5m2fnuzStorage": ("float8_e5m2fnuz", 1),
    "Float8_e4m3fnuzStorage": ("float8_e4m3fnuz", 1),
    "Float8_e8m0fnuStorage": ("float8_e8m0fnu", 1),
    "UInt16Storage": ("uint16", 2),
    "UInt32Storage": ("uint32", 4),
    "UInt64Storage": ("uint64", 8),
}

_PER_TENSOR = ("per_tensor_affine", "per_tensor_symmetric")
_PER_CHANNEL = ("per_channel_affine", "per_channel_affine_float_qparams", "per_channel_symmetric")


class Classes(Protocol):
    """Classes of the archive, for the objects in its pickles."""

    def kind_of(self, name: str) -> str:
        """Return the kind of a class, such as ``"Class"`` or ``"Enum"``; empty if the archive does not have it."""

    def has_set_state(self, name: str) -> bool:
        """Return whether the class has ``__setstate__``, or is a class of PyTorch's C++ code."""

    def parameters_of(self, name: str) -> frozenset[str]:
        """Return the names of the attributes that are parameters."""

    def enum_member(self, name: str, value: object) -> EnumValue:
        """Return the member of an enumeration that has this value."""

    def defined(self, name: str) -> Class | None:
        """Return a class of the archive; None for a class of PyTorch's C++ code."""


@dataclass(frozen=True, slots=True)
class _Global:
    """Function or class that a pickle names."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class _TypedStorage:
    storage: Storage
    dtype: str
    item_size: int


_MARK = object()


class Unpickler:
    """Interpreter of one pickle.

    Args:
        archive: the archive.
        record: the record of the pickle: ``data.pkl``.
        classes: the archive's classes.
    """

    def __init__(self, archive: Archive, record: str, classes: Classes) -> None:
        self._archive = archive
        self._record = record
        self._folder = record.removesuffix(".pkl")
        self._classes = classes
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, Storage] = {}
        self._objects: list[Object] = []
        self._data = b""
        self._position = 0

    def load(self) -> Any:
        """Return the value of the pickle.

        Raises:
            ReadError: the pickle is damaged or hostile, or has something that TorchScript does not write.
        """
        self._data = self._archive.read(self._record)
        if self._data[:2] != b"\x80\x02":
            self.fail("the pickle is not of protocol 2, which TorchScript writes")
        self._position = 2
        opcodes, data = _OPCODES, self._data
        try:
            while (opcode := data[self._position]) != _STOP:
                self._position += 1
                opcodes[opcode](self)
        except ReadError:
            raise
        except (IndexError, KeyError, struct.error, TypeError, ValueError) as error:
            byte = f"byte {self._position}"
            if isinstance(error, KeyError) and error.args == (data[self._position - 1],):
                self.fail(f"{byte} has the opcode {error.args[0]:#x}, which TorchScript does not write")
            self.fail(f"the pickle is damaged at {byte}")
        if len(self._stack) != 1:
            self.fail("the pickle does not leave one value")
        result = self._stack.pop()
        self._check(result)
        conformance = Conformance(self._classes.defined)
        for value in self._objects:
            if name := conformance.fault_of(value):
                self.fail("an attribute is missing, or does not have its type", f"{value.class_name}.{name}")
        return result

    def fail(self, reason: str, construct: str = "") -> NoReturn:
        """Raise an error of this pickle."""
        raise self._archive.error(reason, self._record, construct=construct)

    # Reading of operands

    def _take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            self.fail("the pickle is truncated")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._data.index(b"\n", self._position)
        return self._take(end + 1 - self._position)[:-1].decode()

    def _pop_marked(self) -> list[Any]:
        start = self._marks.pop()
        if start > len(self._stack):
            self.fail(f"the pickle is damaged at byte {self._position}")
        values = self._stack[start:]
        del self._stack[start:]
        return values

    # Opcodes

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _put(self, form: str) -> None:
        self._memo[self._number(form)] = self._stack[-1]

    def _get(self, form: str) -> None:
        self._push(self._memo[self._number(form)])

    def _long(self) -> None:
        count = self._number("<B")
        if count > 8:
            self.fail("an integer has more than 64 bits")
        self._push(int.from_bytes(self._take(count), "little", signed=True))

    def _text(self) -> None:
        # Strings of TorchScript are bytes.
        self._push(self._take(self._number("<I")).decode(errors="surrogateescape"))

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            self.fail(f"the pickle is damaged at byte {self._position}")
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._push(values)

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            self.fail("the pickle appends to a value that is not a list")
        target.extend(values)

    def _set_items(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(values) % 2:
            self.fail("the pickle sets items of a value that is not a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | int | float | complex | bool | StoredTensor):
                self.fail("a key of a dict has a type that TorchScript does not have")
            target[key] = value

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _build_dict(self) -> None:
        values = self._pop_marked()
        self._push({})
        self._set_items(values)

    def _global(self) -> None:
        self._push(_Global(self._line(), self._line()))

    def _new_object(self) -> None:
        self._stack.pop()

    def _reduce(self) -> None:
        argument, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Global):
            self.fail("the pickle calls a value that is not a function")
        name = f"{function.module}.{function.name}"
        if handler := _FUNCTIONS.get(name):
            self._push(handler(self, argument))
        elif name in _REFUSED:
            self.fail(_REFUSED[name], name)
        else:
            self._push(self._make_object(name, argument))

    def _persistent(self) -> None:
        kind, storage_type, key, device, count = self._stack.pop()
        if kind != "storage" or not isinstance(storage_type, _Global) or storage_type.module != "torch":
            self.fail("the pickle refers to something that is not a storage")
        if storage_type.name not in STORAGES:
            self.fail("the dtype is not known", f"torch.{storage_type.name}")
        if not (isinstance(key, str) and isinstance(device, str) and _is_size(count)):
            self.fail("the description of a storage is damaged")
        dtype, item_size = STORAGES[storage_type.name]
        self._push(_TypedStorage(self._storage(key, device, count * item_size), dtype, item_size))

    def _storage(self, key: str, device: str, size: int) -> Storage:
        record = f"{self._folder}/{key}"
        storage = self._storages.get(record)
        if storage is None:
            place, stored = self._archive.place(record) if size else (0, 0)
            storage = self._storages[record] = Storage(record, place, stored, device)
        if size > storage.size:
            self.fail(f"a storage needs {size} bytes, and {record} has {storage.size}")
        return storage

    # Objects and functions

    def _make_object(self, name: str, state: Any) -> Object | EnumValue:
        kind = self._classes.kind_of(name)
        if kind == "Enum":
            return self._classes.enum_member(name, state)
        if kind != "Class":
            self.fail("the pickle calls a function that TorchScript does not call", name)
        if self._classes.has_set_state(name):
            return Object(name, state=state)  # the program checks it
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            self.fail("the attributes of an object are not a dict of strings", name)
        for parameter in self._classes.parameters_of(name):
            if isinstance(tensor := state.get(parameter), StoredTensor):
                state[parameter] = replace(tensor, is_parameter=True)
        self._objects.append(Object(name, state))
        return self._objects[-1]

    def _tensor(self, arguments: Any) -> StoredTensor:
        # Later versions of PyTorch add the bits of conjugation and negation.
        storage, offset, shape, strides, requires_grad, _hooks, *metadata = arguments
        if any(isinstance(bits, dict) and any(bits.values()) for bits in metadata):
            self.fail(
                "a tensor is a conjugate or negative view. Save it resolved (resolve_conj, resolve_neg)", "tensor"
            )
        return self._stored_tensor(storage, offset, shape, strides, requires_grad, None)

    def _quantised_tensor(self, arguments: Any) -> StoredTensor:
        storage, offset, shape, strides, (scheme, *parameters), requires_grad, _hooks = arguments[:7]
        if not isinstance(scheme, _Global):
            self.fail("the scheme of a quantised tensor is damaged")
        if scheme.name in _PER_TENSOR:
            scale, zero_point = parameters
            if not (isinstance(scale, float) and type(zero_point) is int):
                self.fail("the scale of a quantised tensor is damaged")
            quantisation = Quantisation(scale, zero_point)
        elif scheme.name in _PER_CHANNEL:
            scales, zero_points, axis = parameters
            if not (isinstance(scales, StoredTensor) and isinstance(zero_points, StoredTensor) and _is_size(axis)):
                self.fail("the scales of a quantised tensor are damaged")
            quantisation = Quantisation(scales, zero_points, axis)
        else:
            self.fail("the scheme of a quantised tensor is not known", f"torch.{scheme.name}")
        return self._stored_tensor(storage, offset, shape, strides, requires_grad, quantisation)

    def _stored_tensor(
        self, storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, quantisation: Quantisation | None
    ) -> StoredTensor:
        if not isinstance(storage, _TypedStorage) or not isinstance(grad, bool):
            self.fail("the description of a tensor is damaged")
        if not all(map(_is_size, (offset, *shape, *strides))) or len(shape) != len(strides) or len(shape) > 64:
            self.fail("the sizes of a tensor are damaged")
        if 0 not in shape:
            last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            if (last + 1) * storage.item_size > storage.storage.size:
                self.fail(f"a tensor of sizes {list(shape)} reaches outside of its storage {storage.storage.record}")
        return StoredTensor(storage.storage, storage.dtype, shape, strides, offset, grad, False, quantisation)

    def _parameter(self, arguments: Any) -> StoredTensor:
        tensor, requires_grad, _hooks = arguments
        if not isinstance(tensor, StoredTensor) or not isinstance(requires_grad, bool):
            self.fail("the description of a parameter is damaged")
        return replace(tensor, requires_grad=requires_grad, is_parameter=True)

    def _list(self, arguments: Any) -> Any:
        if type(arguments[0]) is not list:
            self.fail("the description of a list is damaged")
        return arguments[0]

    def _tagged(self, arguments: Any) -> Any:
        value, tag = arguments
        if type(value) not in (list, dict) or not isinstance(tag, str):
            self.fail("the type of a container is damaged")
        return value

    def _device(self, arguments: Any) -> str:
        if not isinstance(arguments[0], str):
            self.fail("the name of a device is damaged")
        return arguments[0]

    def _complex(self, arguments: Any) -> complex:
        real, imaginary = arguments
        return complex(float(real), float(imaginary))

    # Checks

    def _check(self, root: Any) -> None:
        """Refuse cycles, deep nesting, values that are too large when written out, and values that are not data."""
        expanded: dict[int, int] = {}  # of containers that were visited; 0 while a container is being visited
        pending: list[tuple[Any, int, bool]] = [(root, 0, False)]
        while pending:
            value, depth, is_done = pending.pop()
            children = _children(value)
            if children is None:
                self.fail("the pickle leaves a function in place of a value")
            if not children:
                continue
            if is_done:
                size = 1 + sum(1 if isinstance(child, Object) else expanded.get(id(child), 1) for child in children)
                if size > _EXPANDED_LIMIT:
                    self.fail(f"a value has more than {_EXPANDED_LIMIT} parts when it is written out")
                expanded[id(value)] = size
            elif id(value) not in expanded:
                if depth > _DEPTH_LIMIT:
                    self.fail(f"values are nested deeper than {_DEPTH_LIMIT}")
                expanded[id(value)] = 0
                pending.append((value, depth, True))
                pending += [(child, depth + 1, False) for child in children]
            elif not expanded[id(value)]:
                self.fail("a value contains itself")


def _children(value: Any) -> list[Any] | None:
    """Return the parts of a value; None if it is not data."""
    if value is None or isinstance(value, _SCALARS):
        return []
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, Object):
        return [*value.attributes.values(), value.state]
    return None


_SCALARS = (str, int, float, complex, bool, StoredTensor, EnumValue)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _INT_LIMIT


_STOP = ord(".")
_OPCODES: Mapping[int, Callable[[Unpickler], None]] = {
    ord("]"): lambda self: self._push([]),
    ord(")"): lambda self: self._push(()),
    ord("}"): lambda self: self._push({}),
    ord("N"): lambda self: self._push(None),
    0x88: lambda self: self._push(True),
    0x89: lambda self: self._push(False),
    ord("K"): lambda self: self._push(self._number("<B")),
    ord("M"): lambda self: self._push(self._number("<H")),
    ord("J"): lambda self: self._push(self._number("<i")),
    ord("G"): lambda self: self._push(self._number(">d")),
    0x8A: Unpickler._long,
    ord("X"): Unpickler._text,
    ord("("): Unpickler._mark,
    ord("q"): lambda self: self._put("<B"),
    ord("r"): lambda self: self._put("<I"),
    ord("h"): lambda self: self._get("<B"),
    ord("j"): lambda self: self._get("<I"),
    ord("t"): lambda self: self._push(tuple(self._pop_marked())),
    0x85: lambda self: self._tuple(1),
    0x86: lambda self: self._tuple(2),
    0x87: lambda self: self._tuple(3),
    ord("l"): lambda self: self._push(self._pop_marked()),
    ord("a"): lambda self: self._append([self._stack.pop()]),
    ord("e"): lambda self: self._append(self._pop_marked()),
    ord("d"): Unpickler._build_dict,
    ord("s"): Unpickler._set_item,
    ord("u"): lambda self: self._set_items(self._pop_marked()),
    ord("c"): Unpickler._global,
    0x81: Unpickler._new_object,
    ord("b"): Unpickler._reduce,
    ord("R"): Unpickler._reduce,
    ord("Q"): Unpickler._persistent,
}

_FUNCTIONS: Mapping[str, Callable[[Unpickler, Any], Any]] = {
    "torch._utils._rebuild_tensor_v2": Unpickler._tensor,
    "torch._utils._rebuild_qtensor": Unpickler._quantised_tensor,
    "torch._utils._rebuild_parameter": Unpickler._parameter,
    "torch.jit._pickle.build_intlist": Unpickler._list,
    "torch.jit._pickle.build_tensorlist": Unpickler._list,
    "torch.jit._pickle.build_doublelist": Unpickler._list,
    "torch.jit._pickle.build_boollist": Unpickler._list,
    "torch.jit._pickle.restore_type_tag": Unpickler._tagged,
    "torch.device": Unpickler._device,
    "builtins.complex": Unpickler._complex,
    "collections.OrderedDict": lambda self, _: None,
}

_REFUSED: Mapping[str, str] = {
    "torch._utils._rebuild_sparse_tensor": "sparse tensors are not read. Save them dense",
    "torch._tensor._rebuild_from_type_v2": "subclasses of tensors are not read. Save plain tensors",
    "torch.jit._pickle.build_tensor_from_id": "tables of tensors are not read. Save the file again with torch >= 1.5",
    "torch.distributed.rpc.rref": "references to other processes are not read",
}
