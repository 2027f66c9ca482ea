"""State of a module that ``torchmdla.load(path, reader="own")`` returned, as a program that can be written."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchmdla.script.ir import (
    Constant,
    EnumValue,
    Object,
    Program,
    Quantisation,
    Storage,
    StoredTensor,
    Type,
)

_ANY = Type("Any")
_CHUNK = 1 << 24


class Snapshot:
    """Values of a module's attributes, as those of a program. Its graphs are those of the file.

    Attributes:
        program: the program with the module's present state.
    """

    def __init__(self, module: Any) -> None:
        self._values: dict[int, Constant] = {}
        self._retained: list[Any] = []
        self._storages: dict[int, Storage] = {}
        self._memory: dict[Storage, torch.UntypedStorage] = {}
        program: Program = module._program.program
        root = self._convert(module, _ANY)
        assert isinstance(root, Object)
        self.program = replace(program, root=root)

    def read_storage(self, storage: Storage) -> Iterator[bytes] | None:
        """Return the bytes of a storage in parts; None for one that is in the program's file."""
        memory = self._memory.get(storage)
        return None if memory is None else _parts(memory)

    def _convert(self, value: Any, type_: Type) -> Constant:
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        if id(value) not in self._values:
            self._retained.append(value)
            self._values[id(value)] = self._convert_new(
                value, type_.arguments[0] if type_.kind == "Optional" else type_
            )
        return self._values[id(value)]

    def _convert_new(self, value: Any, type_: Type) -> Constant:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if hasattr(value, "_script_class"):
            return self._object(value)
        if isinstance(value, list):
            return [self._convert(item, _argument(type_, 0)) for item in value]
        if isinstance(value, dict):
            pairs = (
                (self._convert(key, _ANY), self._convert(item, _argument(type_, 1))) for key, item in value.items()
            )
            return dict(pairs)
        if isinstance(value, tuple):
            return tuple(self._convert(item, _argument(type_, place)) for place, item in enumerate(value))
        if isinstance(value, torch.device):
            return str(value)
        if isinstance(value, enum.Enum):
            return EnumValue(type_.name, value.name, value.value)
        if isinstance(value, torch.ScriptObject):
            custom: Any = value  # whose state has the name of its class, too
            return Object(custom._type().qualified_name(), state=self._convert(custom.__getstate__()[0], _ANY))
        return value  # type: ignore[no-any-return]

    def _object(self, value: Any) -> Object:
        class_ = value._script_class
        result = Object(class_.type.name)
        if "__getstate__" in class_.methods:
            state = value._script___getstate__()
            result.state = self._convert(state, class_.methods["__getstate__"].returns)
        else:
            result.attributes = {
                name: self._convert(getattr(value, name), of) for name, of in class_.attributes.items()
            }
        return result

    def _tensor(self, tensor: Tensor) -> StoredTensor:
        return StoredTensor(
            self._storage(tensor),
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.requires_grad,
            isinstance(tensor, torch.nn.Parameter),
            self._quantisation(tensor) if tensor.is_quantized else None,
        )

    def _storage(self, tensor: Tensor) -> Storage:
        memory = tensor.untyped_storage()
        key = memory.data_ptr() or id(tensor)
        if key not in self._storages:
            number = len(self._storages)
            storage = Storage(f"memory/{number}", 0, memory.nbytes(), str(tensor.device))
            self._storages[key] = storage
            self._memory[storage] = memory
        return self._storages[key]

    def _quantisation(self, tensor: Tensor) -> Quantisation:
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            return Quantisation(tensor.q_scale(), tensor.q_zero_point())
        scales, points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        self._retained += [scales, points]  # they are new tensors, whose memory must not be used again
        return Quantisation(self._tensor(scales), self._tensor(points), tensor.q_per_channel_axis())


def _argument(type_: Type, place: int) -> Type:
    return type_.arguments[place] if place < len(type_.arguments) else _ANY


def _parts(memory: torch.UntypedStorage) -> Iterator[bytes]:
    memory = memory.cpu()
    for start in range(0, memory.nbytes(), _CHUNK):
        yield ctypes.string_at(memory.data_ptr() + start, min(_CHUNK, memory.nbytes() - start))
