"""Tensors of a program, from its file."""

from __future__ import annotations

import mmap
from typing import Any

import torch

from torchmdla.script.ir import Quantisation, Storage, StoredTensor


class Tensors:
    """Tensors of a file. Those that share a storage in the file share memory.

    Args:
        path: the file. Empty if no tensor is in a file.
        device: the device that the tensors go to, or None for that in the file.
        map_weights: whether the memory is the mapped file. Writes do not reach the file.
    """

    def __init__(self, path: str, device: torch.device | None = None, map_weights: bool = False) -> None:
        self._path = path
        self._device = device
        self._maps = map_weights
        self._storages: dict[tuple[str, int], torch.UntypedStorage] = {}
        self._parameters: dict[tuple[object, ...], torch.nn.Parameter] = {}
        self._mapping: mmap.mmap | None = None

    def tensor(self, stored: StoredTensor) -> torch.Tensor:
        """Return a tensor, which may be a parameter."""
        return self._leaf(stored) if stored.is_parameter or stored.requires_grad else self._of_storage(stored)

    def forget(self) -> None:
        """Forget the memory that was read so far."""
        self._storages.clear()
        self._parameters.clear()

    def _leaf(self, stored: StoredTensor) -> torch.nn.Parameter:
        """Return a parameter. Modules and lists that share one in the file share it, so that it has one gradient."""
        key = stored.storage.record, stored.offset, stored.dtype, stored.shape, stored.strides
        if key not in self._parameters:
            self._parameters[key] = torch.nn.Parameter(self._of_storage(stored), requires_grad=stored.requires_grad)
        return self._parameters[key]

    def _storage(self, storage: Storage) -> torch.UntypedStorage:
        key = storage.record, storage.offset
        if key not in self._storages:
            device = self._device or torch.device(storage.device)
            memory = self._read(storage)
            self._storages[key] = memory if device.type == "cpu" else memory.to(device=device)
        return self._storages[key]

    def _read(self, storage: Storage) -> torch.UntypedStorage:
        if not storage.size:
            return torch.UntypedStorage(0)
        mapped = torch.frombuffer(self._map(), dtype=torch.uint8, count=storage.size, offset=storage.offset)
        return mapped.untyped_storage() if self._maps else mapped.clone().untyped_storage()

    def _map(self) -> mmap.mmap:
        if self._mapping is None:
            with open(self._path, "rb") as file:
                self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._mapping

    def _of_storage(self, stored: StoredTensor) -> torch.Tensor:
        storage = self._storage(stored.storage)
        dtype = getattr(torch, stored.dtype)
        if stored.quantisation is not None:
            return self._quantised(storage, stored, dtype, stored.quantisation)
        empty = torch.empty(0, dtype=dtype, device=storage.device)
        return empty.set_(storage, stored.offset, stored.shape, stored.strides)

    def _quantised(
        self, storage: torch.UntypedStorage, stored: StoredTensor, dtype: torch.dtype, scheme: Quantisation
    ) -> torch.Tensor:
        typed: Any = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        scale, zero_point = (
            self.tensor(part) if isinstance(part, StoredTensor) else part for part in (scheme.scale, scheme.zero_point)
        )
        description: tuple[Any, ...] = (torch.per_tensor_affine, scale, zero_point)
        if isinstance(scale, torch.Tensor):
            floats = torch.per_channel_affine, torch.per_channel_affine_float_qparams
            description = (floats[zero_point.is_floating_point()], scale, zero_point, scheme.axis)  # type: ignore[union-attr]
        return torch._utils._rebuild_qtensor(  # type: ignore[no-any-return]
            typed, stored.offset, stored.shape, stored.strides, description, stored.requires_grad, {}
        )
