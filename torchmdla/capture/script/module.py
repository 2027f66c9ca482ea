"""Modules of a program: ``torch.nn.Module`` with its parameters, buffers, methods and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchmdla.capture.script.inlining import class_of, inline_calls
from torchmdla.capture.script.program import LoadedProgram
from torchmdla.capture.script.slots import CHANGES, Slots
from torchmdla.capture.script.tensors import Tensors
from torchmdla.script.ir import Class, Graph, Program


class ScriptProgramModule(nn.Module):
    """Module of a program that torchmdla reads and runs itself."""

    _program: LoadedProgram
    _script_class: Class

    def _initialise(self) -> None:
        super().__init__()
        for slots in ("_parameters", "_buffers", "_modules"):
            self.__dict__[slots] = Slots(self.__dict__[slots])
        before, after = self._script_class.hooks
        for name in before:
            self.register_forward_pre_hook(_hook(name))
        for name in after:
            self.register_forward_hook(_hook(name))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy, without results of earlier calls."""
        return {key: value for key, value in self.__dict__.items() if not key.startswith(("_slots_of_", "_modes_of_"))}

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training":
            CHANGES[0] += 1
        super().__setattr__(name, value)

    def _set(self, name: str, value: Any) -> None:
        class_ = self._script_class
        if name in class_.parameters:
            self._parameters[name] = value
        elif name in class_.buffers:
            self._buffers[name] = value
        elif isinstance(value, nn.Module) or (value is None and self._is_submodule(name)):
            self._modules[name] = value
        else:
            self.__dict__[name] = value

    def _is_submodule(self, name: str) -> bool:
        type_ = self._script_class.attributes.get(name)
        inner = class_of(type_, self._program.program) if type_ is not None else None
        return inner is not None and inner.is_module

    @property
    def original_name(self) -> str:
        """Return the name of the class in the program."""
        return self._script_class.type.name.rpartition(".")[2]

    @property
    def graph(self) -> str:
        """Return the graph of ``forward`` as text."""
        return str(self._script_class.methods["forward"])

    @property
    def inlined_graph(self) -> Graph:
        """Return the graph of ``forward`` with the calls inlined. Its constants are PyTorch's objects."""
        graph = inline_calls(self._script_class.methods["forward"], self._program.program)
        for node in graph.walk():
            if node.op == "prim::Constant":
                value = self._program.constant(node.attributes["value"])
                is_device = isinstance(value, str) and node.outputs[0].type.kind == "Device"
                node.attributes = {"value": torch.device(value) if is_device else value}
        return graph

    @property
    def code(self) -> str:
        """Return the Python source that runs ``forward``."""
        return self._program.source(self._script_class.methods["forward"])

    def _get_name(self) -> str:
        return f"ScriptProgramModule({self.original_name})"

    def __copy__(self) -> Any:
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__)
        return result


def _hook(name: str) -> Callable[..., Any]:
    return lambda module, *arguments: getattr(module, name)(*arguments)


def make_module(program: Program, device: torch.device | None = None, map_weights: bool = False) -> Any:
    """Return the root module of a program.

    Args:
        program: the program.
        device: the device of its tensors, or None for those of the file.
        map_weights: whether the tensors' memory is the mapped file.
    """
    loaded = LoadedProgram(program, Tensors(program.path, device, map_weights), ScriptProgramModule)
    root = loaded.constant(program.root)
    loaded.forget_values()
    return root


def make_function(program: Program, graph: Graph) -> Callable[..., Any]:
    """Return the function that runs a graph of a program."""
    return LoadedProgram(program, Tensors(program.path), ScriptProgramModule).entry(graph)
