"""The runtime library: its dependencies, its exported symbols and its C interface."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from in_threads import in_threads
from native_models import Exported
from torch.utils.dlpack import to_dlpack

import torchmdla_runtime
from torchmdla.testing.compare import assert_matches
from torchmdla_runtime.library import LIBRARY, Info, Options, Tensor

PATH = Path(torchmdla_runtime.__file__).with_name("libtorchmdla_runtime.so")
INVALID_ARGUMENT, WRONG_TENSOR = 1, 5


def output_of(*command: str) -> list[str]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_it_needs_the_c_library_alone() -> None:
    needed = {line.split()[0].rpartition("/")[2] for line in output_of("ldd", str(PATH))}
    of_libc = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
    assert needed <= {*of_libc, "linux-vdso.so.1", "ld-linux-x86-64.so.2"}


def test_it_shows_its_interface_alone() -> None:
    lines = output_of("nm", "-D", "--defined-only", str(PATH))
    names = {line.split()[-1].partition("@")[0] for line in lines} - {"TMDLA_1", "TMDLA_2", "TMDLA_3"}
    # The symbols that gdb looks up (src/codeimage/debuggers.cpp).
    assert {name for name in names if not name.startswith("tmdla_")} == {
        "__jit_debug_descriptor",
        "__jit_debug_register_code",
    }
    declared = (Path(__file__).parents[2] / "torchmdla" / "include" / "torchmdla" / "runtime.h").read_text()
    assert all(f"{name}(" in declared for name in names if name.startswith("tmdla_"))


def test_the_interface_has_a_version() -> None:
    assert torchmdla_runtime.api_version() == 3


def test_arguments_that_are_none(mlp: Exported) -> None:
    model = mlp.load()
    handle, info, result = model._handle, Info(), ctypes.c_void_p()
    path = str(mlp.path).encode()
    wrong = [
        LIBRARY.tmdla_load(None, None, ctypes.byref(result)),
        LIBRARY.tmdla_load(path, None, None),
        LIBRARY.tmdla_load(path, Options(4, 0, 0), ctypes.byref(result)),
        LIBRARY.tmdla_load(path, Options(1, -1, 0), ctypes.byref(result)),
        LIBRARY.tmdla_input(handle, 1, ctypes.byref(info)),
        LIBRARY.tmdla_output(handle, 0, None),
        LIBRARY.tmdla_input(None, 0, ctypes.byref(info)),
        LIBRARY.tmdla_run(None, None, 0, None, 0),
        LIBRARY.tmdla_run(handle, None, 1, None, 1),
        LIBRARY.tmdla_verify(None),
        LIBRARY.tmdla_set_threads(None, 1),
    ]
    assert wrong == [INVALID_ARGUMENT] * len(wrong)
    assert result.value is None
    assert LIBRARY.tmdla_input_count(None) == LIBRARY.tmdla_output_count(None) == LIBRARY.tmdla_threads(None) == 0
    LIBRARY.tmdla_free(None)


def test_errors_are_the_threads(mlp: Exported) -> None:
    LIBRARY.tmdla_verify(None)
    assert not in_threads(1, lambda _: LIBRARY.tmdla_load(b"other.tmdla", None, ctypes.byref(ctypes.c_void_p())))
    assert LIBRARY.tmdla_last_error() == b"the model is null"


def test_wrong_outputs(mlp: Exported) -> None:
    model = mlp.load()
    sizes, wrong = (ctypes.c_int64 * 2)(4, 32), (ctypes.c_int64 * 2)(4, 63)
    memory = (ctypes.c_float * 4096)()
    rows = Tensor(ctypes.addressof(memory), 6, 2, sizes, None)
    for output in (Tensor(ctypes.addressof(memory), 6, 2, wrong, None), Tensor(None, 6, 2, sizes, None)):
        assert LIBRARY.tmdla_run(model._handle, rows, 1, output, 1) == WRONG_TENSOR
        assert b"output 0 (output0)" in LIBRARY.tmdla_last_error()


# --- DLPack


def pointer_of(tensor: torch.Tensor) -> int:
    """Return the address of the DLManagedTensor in a capsule, which lives as long as the tensor."""
    capsule = to_dlpack(tensor)
    tensor._capsule = capsule  # type: ignore[attr-defined]
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, b"dltensor"))


def run_dlpack(model: torchmdla_runtime.Model, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    run = LIBRARY.tmdla_run_dlpack
    run.restype = ctypes.c_int
    arguments, results = ((ctypes.c_void_p * len(tensors))(*map(pointer_of, tensors)) for tensors in (inputs, outputs))
    return int(run(model._handle, arguments, ctypes.c_size_t(len(inputs)), results, ctypes.c_size_t(len(outputs))))


def test_dlpack(mlp: Exported) -> None:
    model, (rows,), (expected,) = mlp.load(), mlp.inputs, mlp.expected()
    result, apart = torch.empty_like(expected), torch.empty(64, 4).t()
    for argument, target in ((rows, result), (rows.t().contiguous().t(), apart), (torch.cat([rows, rows])[4:], result)):
        assert run_dlpack(model, [argument], [target]) == 0
        assert_matches(target, expected, strides=False)
    assert run_dlpack(model, [rows.to(torch.int32)], [result]) == WRONG_TENSOR
    assert run_dlpack(model, [rows], []) == WRONG_TENSOR
