"""Exported programs that are data alone, from wherever they come.

PyTorch evaluates expressions of such a file as Python, writes its names into Python that it executes, imports modules
and calls functions that it names, and falls back to unpickling objects. Nothing is let through but what is known here.
"""

from __future__ import annotations

import ast
import io
import json
import math
import operator
import os
import pickle
import re
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torchmdla.structures import structure_from


class UnsafeProgramError(Exception):
    """Something of a file is, or may be, code; says what."""


def load_data_alone(path: str) -> Any:
    """The exported program in a file, as ``torch.export.load``.

    Raises:
        UnsafeProgramError: there is more in it than data.
    """
    import torch.export

    try:
        with _tensors_alone():
            return torch.export.load(_checked_copy(path))
    except pickle.UnpicklingError as error:
        raise UnsafeProgramError("a pickled object") from error


@contextmanager
def _tensors_alone() -> Iterator[None]:
    """``torch.load`` unpickles no objects in this block, whatever it is told."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _checked_copy(path: str) -> io.BytesIO:
    """An archive of what was checked: there are several ways to read one, and JSON, that is made for that."""
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as checked:
        for name in dict.fromkeys(archive.namelist()):
            _check_entry(name)
            content = archive.read(name)
            if name.endswith(".json"):
                described = json.loads(content)
                _check(described, name)
                content = json.dumps(described).encode()
            checked.writestr(name, content)
    copy.seek(0)
    return copy


# Entries that PyTorch writes: data, tensors, and what it unpickles by `torch.load`. No code for a device, no objects.
_ENTRY = re.compile(
    r"([^/]+/)?("
    r"data/(weights|constants)/(weight_\d+|tensor_\d+|[^/]+\.(json|pt))|data/sample_inputs/[^/]+\.pt|models/[^/]+\.json|"
    r"extra/.*|extra_files/.*|archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)|"
    r"serialized_(exported_program\.json|(state_dict|constants|example_inputs)\.(pt|json)))"
)

# What names, of tensors, parameters and versions, are made of: no code can be.
_NAME = re.compile(r"[\w.+\-]*", re.ASCII)


def _check_entry(name: str) -> None:
    if not _ENTRY.fullmatch(name):
        raise UnsafeProgramError(f"the entry {name!r}")


def _check_name(text: str) -> None:
    if not _NAME.fullmatch(text):
        raise UnsafeProgramError(f"the name {text[:80]!r}")


def _check_tensor_file(text: str) -> None:
    if not re.fullmatch(r"(weight|tensor)_\d+", text):
        raise UnsafeProgramError(f"the object {text[:80]!r}")


def _check_text(text: str) -> None:
    # A comment in generated code ends with its line, however lines end.
    if not all(letter.isprintable() or letter in "\n\t" for letter in text):
        raise UnsafeProgramError("unprintable text")


_NODES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.Compare, ast.BoolOp, ast.BinOp),
    *(ast.UnaryOp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
# Of sympy and torch.utils._sympy.functions, what expressions of sizes are made of.
_FUNCTIONS = frozenset(
    (
        "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "And", "Or",
        "Not", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Equality", "Unequality", "StrictLessThan", "LessThan",
        "StrictGreaterThan", "GreaterThan", "Piecewise", "floor", "ceiling", "FloorDiv", "ModularIndexing", "Where",
        "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural",
        "FloatPow", "FloatTrueDiv", "IntTrueDiv", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal",
        "ToFloat", "Identity", "IsNonOverlappingAndDenseIndicator"
    )
)  # fmt: skip


def _check_expression(text: str) -> None:
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        allowed = isinstance(node, _NODES)
        if isinstance(node, ast.Call):
            allowed = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            _check_name(node.value)
        if not allowed:
            raise UnsafeProgramError(f"the expression {text[:80]!r}")


def _check_structure(text: str) -> None:
    if text:  # of a module that is called in the program
        try:
            structure_from(text)
        except ValueError as error:
            raise UnsafeProgramError(str(error)) from None


_MODULES = {"_operator": operator, "math": math}
_SYMBOLIC = re.compile(r"torch\.sym_\w+")


def _check_target(text: str) -> None:
    """Functions of PyTorch's dispatcher, and those of numbers that graphs of sizes call."""
    import torch

    module, _, name = text.partition(".")
    if module in _MODULES:
        allowed = isinstance(getattr(_MODULES[module], name, None), types.BuiltinFunctionType)
    elif _SYMBOLIC.fullmatch(text):
        allowed = callable(getattr(torch, name, None))
    else:
        found: Any = torch
        for part in text.split(".")[1:] if _NAME.fullmatch(text) and text.startswith("torch.ops.") else ():
            found = getattr(found, part)
        allowed = isinstance(found, torch._ops.OpOverload | torch._ops.HigherOrderOperator)
    if not allowed:
        raise UnsafeProgramError(f"the function {text[:80]!r}")


# How texts are checked, by the key that they stand under; all others are names.
_CHECKS: Mapping[str, Callable[[str], None]] = {
    "as_operator": _check_target,
    "as_string": _check_text,
    "as_strings": _check_text,
    "expr_str": _check_expression,
    "in_spec": _check_structure,
    "metadata": _check_text,
    "out_spec": _check_structure,
    "path_name": _check_tensor_file,
    "target": _check_target,
}


def _check(value: Any, key: str) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            _check_name(name)
            _check(part, "metadata" if key == "metadata" else name)
    elif isinstance(value, list):
        for part in value:
            _check(part, key)
    elif isinstance(value, str):
        _CHECKS.get(key, _check_name)(value)
