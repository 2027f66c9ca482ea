"""Pickler of TorchScript's archives: values are written as ``torch/csrc/jit/serialization/pickler.cpp`` does.

Containers have tags with their declared types, since TorchScript's lists and dicts know the types of their elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from torchmdla.errors import ReadError
from torchmdla.script.builder import type_of_constant
from torchmdla.script.ir import Class, Constant, EnumValue, Object, Storage, StoredTensor, Type
from torchmdla.script.printing import text_of_type
from torchmdla.script.types import DEVICE
from torchmdla.script.unpickler import STORAGES

_STORAGE_OF = {dtype: (name, size) for name, (dtype, size) in STORAGES.items()}
_HOOKS = b"ccollections\nOrderedDict\n)R"
_ANY = Type("Any")


class Pickler:
    """Writer of one pickle.

    Attributes:
        storages: the storages of its tensors, in the order of their records.
    """

    def __init__(self, classes: Mapping[str, Class]) -> None:
        self._classes = classes
        self._parts: list[bytes] = [b"\x80\x02"]
        self._memo: dict[int, int] = {}
        self._retained: list[Any] = []
        self.storages: dict[Storage, int] = {}

    def finish(self) -> bytes:
        """Return the pickle."""
        return b"".join([*self._parts, b"."])

    def push(self, value: Constant, type_: Type = _ANY) -> None:
        """Write a value of a declared type."""
        if id(value) in self._memo:
            self._put(b"j" + struct.pack("<I", self._memo[id(value)]))
            return
        if type_.kind == "Optional":
            type_ = type_.arguments[0]
        if type_ == DEVICE and isinstance(value, str):
            self._put(b"ctorch\ndevice\n")
            self._text(value)
            self._put(b"\x85R")
            return
        for kinds, write in _WRITERS:
            if isinstance(value, kinds):
                write(self, value, type_)
                return
        raise ReadError(f"values of {type(value).__name__} cannot be written to a file", construct=str(type_))

    def _put(self, opcodes: bytes) -> None:
        self._parts.append(opcodes)

    def _remember(self, value: Any) -> None:
        self._memo[id(value)] = len(self._memo)
        self._retained.append(value)
        self._put(b"r" + struct.pack("<I", self._memo[id(value)]))

    def _global(self, name: str) -> None:
        module, _, last = name.rpartition(".")
        self._put(f"c{module}\n{last}\n".encode())

    def _none(self, value: None, type_: Type) -> None:
        self._put(b"N")

    def _bool(self, value: bool, type_: Type) -> None:
        self._put(b"\x88" if value else b"\x89")

    def _int(self, value: int, type_: Type = _ANY) -> None:
        if -(1 << 31) <= value < 1 << 31:
            self._put(b"J" + struct.pack("<i", value))
        else:
            self._put(b"\x8a\x08" + struct.pack("<q", value))

    def _float(self, value: float, type_: Type) -> None:
        self._put(b"G" + struct.pack(">d", value))

    def _complex(self, value: complex, type_: Type) -> None:
        self._put(b"cbuiltins\ncomplex\n(")
        self._float(value.real, type_)
        self._float(value.imag, type_)
        self._put(b"tR")

    def _text(self, value: str, type_: Type = _ANY) -> None:
        content = value.encode(errors="surrogateescape")
        self._put(b"X" + struct.pack("<I", len(content)) + content)

    def _list(self, value: list[Any], type_: Type) -> None:
        if type_.kind != "List":
            type_ = type_of_constant(value)
        self._put(b"ctorch.jit._pickle\nrestore_type_tag\n](")
        for item in value:
            self.push(item, type_.arguments[0])
        self._put(b"e")
        self._tag(value, type_)

    def _dict(self, value: dict[Any, Any], type_: Type) -> None:
        if type_.kind != "Dict":
            type_ = type_of_constant(value)
        self._put(b"ctorch.jit._pickle\nrestore_type_tag\n}(")
        for key, item in value.items():
            self.push(key, type_.arguments[0])
            self.push(item, type_.arguments[1])
        self._put(b"u")
        self._tag(value, type_)

    def _tag(self, value: Any, type_: Type) -> None:
        self._text(text_of_type(type_))
        self._put(b"\x86R")
        self._remember(value)

    def _tuple(self, value: tuple[Any, ...], type_: Type) -> None:
        types: Sequence[Type] = type_.arguments
        if type_.kind not in ("Tuple", "NamedTuple") or len(types) != len(value):
            types = [_ANY] * len(value)
        self._put(b"(")
        for item, element in zip(value, types, strict=True):
            self.push(item, element)
        self._put(b"t")

    def _enum(self, value: EnumValue, type_: Type) -> None:
        self._global(value.class_name)
        self.push(value.value)
        self._put(b"R")

    def _object(self, value: Object, type_: Type) -> None:
        self._global(value.class_name)
        self._put(b")\x81")
        class_ = self._classes.get(value.class_name)
        if value.state is not None or (class_ is None and not value.attributes):
            self.push(value.state, _state_type(class_))
        else:
            types = class_.attributes if class_ else {}
            self._put(b"}(")
            for name, item in value.attributes.items():
                self._text(name)
                self.push(item, types.get(name, _ANY))
            self._put(b"u")
        self._put(b"b")
        self._remember(value)

    def _tensor(self, value: StoredTensor, type_: Type) -> None:
        quantisation = value.quantisation
        name = "_rebuild_qtensor" if quantisation else "_rebuild_tensor_v2"
        self._put(f"ctorch._utils\n{name}\n((".encode())
        storage, item_size = _STORAGE_OF[value.dtype]
        number = self.storages.setdefault(value.storage, len(self.storages))
        self._text("storage")
        self._put(f"ctorch\n{storage}\n".encode())
        self._text(str(number))
        self._text(value.storage.device)
        self._int(value.storage.size // item_size)
        self._put(b"tQ")
        self._int(value.offset)
        for sizes in (value.shape, value.strides):
            self._tuple(sizes, _ANY)
        if quantisation and quantisation.axis is None:
            self._put(b"(ctorch\nper_tensor_affine\n")
            self.push(quantisation.scale)
            self.push(quantisation.zero_point)
            self._put(b"t")
        elif quantisation:
            is_float = isinstance(quantisation.zero_point, StoredTensor) and "float" in quantisation.zero_point.dtype
            self._put(f"(ctorch\nper_channel_affine{'_float_qparams' if is_float else ''}\n".encode())
            for part in (quantisation.scale, quantisation.zero_point, quantisation.axis):
                self.push(part)
            self._put(b"t")
        self._bool(value.requires_grad, _ANY)
        self._put(_HOOKS + b"tR")


def _state_type(class_: Class | None) -> Type:
    """Return the type of the state that a class's ``__setstate__`` takes."""
    methods: MutableMapping[str, Any] = class_.methods if class_ else {}
    return methods["__setstate__"].inputs[1].type if "__setstate__" in methods else _ANY


_WRITERS: Sequence[tuple[type, Callable[[Pickler, Any, Type], None]]] = (
    (type(None), Pickler._none),
    (bool, Pickler._bool),
    (int, Pickler._int),
    (float, Pickler._float),
    (complex, Pickler._complex),
    (str, Pickler._text),
    (StoredTensor, Pickler._tensor),
    (Object, Pickler._object),
    (EnumValue, Pickler._enum),
    (list, Pickler._list),
    (tuple, Pickler._tuple),
    (dict, Pickler._dict),
)
