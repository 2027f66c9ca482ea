"""Safe loader of exported programs from untrusted files: it accepts data only.

PyTorch evaluates expressions in such a file as Python, and inserts its names into Python code that it executes. It also
imports modules and calls functions that the file names, and falls back to unpickling objects. The loader accepts only
the contents that are known here.
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

import torch

from torchmdla.structures import parse_structure


class UnsafeProgramError(Exception):
    """Error: a part of the file is, or may be, code; the message names the part."""


def load_data_only(path: str) -> Any:
    """Return the exported program in a file, as ``torch.export.load`` does.

    Raises:
        UnsafeProgramError: the file contains more than data.
    """
    import torch.export

    try:
        with _tensors_only():
            return torch.export.load(_checked_copy(path))
    except pickle.UnpicklingError as error:
        raise UnsafeProgramError("a pickled object") from error


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Prevent ``torch.load`` from unpickling objects inside the context, whatever its arguments are."""
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
    """Return an archive that contains exactly the checked contents.

    Parsers of archives and of JSON may read the original differently.
    """
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as checked:
        for name in dict.fromkeys(archive.namelist()):
            if not _ENTRY.fullmatch(name):
                raise UnsafeProgramError(f"the entry {name!r}")
            content = archive.read(name)
            if name.endswith(".json"):
                described = json.loads(content)
                _check(described, name)
                content = json.dumps(described).encode()
            checked.writestr(name, content)
    copy.seek(0)
    return copy


# Entries that PyTorch writes: data, tensors, and files that it reads with `torch.load`. Code for a device and pickled
# objects are excluded.
_ENTRY = re.compile(
    r"([^/]+/)?("
    r"data/(weights|constants)/(weight_\d+|tensor_\d+|[^/]+\.(json|pt))|data/sample_inputs/[^/]+\.pt|models/[^/]+\.json|"
    r"extra/.*|extra_files/.*|archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)|"
    r"serialized_(exported_program\.json|(state_dict|constants|example_inputs)\.(pt|json)))"
)

# The characters of names of tensors, parameters and versions. They cannot form code.
_NAME = re.compile(r"[\w.+\-]*", re.ASCII)


def _check_name(text: str) -> None:
    if not _NAME.fullmatch(text):
        raise UnsafeProgramError(f"the name {text[:80]!r}")


def _check_tensor_file(text: str) -> None:
    if not re.fullmatch(r"(weight|tensor)_\d+", text):
        raise UnsafeProgramError(f"the object {text[:80]!r}")


def _check_text(text: str) -> None:
    # A line break of any kind would end a comment in generated code.
    if not all(letter.isprintable() or letter in "\n\t" for letter in text):
        raise UnsafeProgramError("unprintable text")


_NODES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.Compare, ast.BoolOp, ast.BinOp),
    *(ast.UnaryOp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
# Functions of sympy and torch.utils._sympy.functions in expressions of sizes.
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
    if text:  # the structure of a module that the program calls
        try:
            parse_structure(text)
        except ValueError as error:
            raise UnsafeProgramError(str(error)) from None


_MODULES = {"_operator": operator, "math": math}
_SYMBOLIC = re.compile(r"torch\.sym_\w+")


def _check_target(text: str) -> None:
    """Accept functions of PyTorch's dispatcher, and functions of numbers in graphs of sizes."""
    module, _, name = text.partition(".")
    if module in _MODULES:
        allowed = isinstance(getattr(_MODULES[module], name, None), types.BuiltinFunctionType)
    elif _SYMBOLIC.fullmatch(text):
        allowed = callable(getattr(torch, name, None))
    else:
        target: Any = torch
        for part in text.split(".")[1:] if _NAME.fullmatch(text) and text.startswith("torch.ops.") else ():
            target = getattr(target, part)
        allowed = isinstance(target, torch._ops.OpOverload | torch._ops.HigherOrderOperator)
    if not allowed:
        raise UnsafeProgramError(f"the function {text[:80]!r}")


# The check of a text, by its key; texts under other keys must be names.
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
