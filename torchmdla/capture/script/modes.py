"""Functions that are compiled for the modes, training or evaluation, of the modules that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchmdla.capture.script.inlining import class_of
from torchmdla.capture.script.slots import CHANGES
from torchmdla.script.ir import Graph, Program, Value

# Modules may be in more combinations of modes. Further ones have a function that reads the modes.
_MOST_MODES = 8

Path = tuple[str, ...]
Compile = Callable[[Mapping[Value, bool]], Callable[..., Any]]


def mode_reads(graph: Graph, program: Program) -> dict[Value, Path]:
    """Return the values that are modes, and the path of each from the module that is the first input."""
    if not graph.inputs:
        return {}
    paths: dict[Value, Path] = {graph.inputs[0]: ()}
    reads = {}
    for node in graph.walk():
        if node.op == "prim::SetAttr" and node.attributes["name"] == "training":
            return {}
        if node.op != "prim::GetAttr" or node.inputs[0] not in paths:
            continue
        class_ = class_of(node.inputs[0].type, program)
        if class_ is None or not class_.is_module:
            continue
        path = paths[node.inputs[0]]
        if node.attributes["name"] == "training":
            reads[node.outputs[0]] = path
        else:
            paths[node.outputs[0]] = (*path, str(node.attributes["name"]))
    return reads


def specialise(name: str, reads: Mapping[Value, Path], compile_function: Compile) -> Callable[..., Any]:
    """Return the function that calls the one for the present modes, which ``compile_function`` makes."""
    key = f"_modes_of_{name}"
    variants: dict[tuple[bool, ...], Callable[..., Any]] = {}
    paths = list(dict.fromkeys(reads.values()))

    def choose(module: Any) -> Callable[..., Any]:
        modes = tuple(_mode(module, path) for path in paths)
        if modes not in variants:
            known = dict(zip(paths, modes, strict=True)) if len(variants) < _MOST_MODES else {}
            variants[modes] = compile_function({value: known[path] for value, path in reads.items() if path in known})
        return variants[modes]

    def call(module: Any, *arguments: Any) -> Any:
        state = module.__dict__.get(key)
        if state is None or state[0] != CHANGES[0]:
            state = module.__dict__[key] = CHANGES[0], choose(module)
        return state[1](module, *arguments)

    return call


def _mode(module: Any, path: Sequence[str]) -> bool:
    for name in path:
        module = module._modules[name]
    return bool(module.training)
