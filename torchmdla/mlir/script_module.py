"""TorchScript programs as modules that ``torch.export`` can capture."""

from __future__ import annotations

from typing import Any

import torch

from torchmdla.importer.graph import name_of
from torchmdla.importer.interpreter import Run
from torchmdla.importer.sources import source_of


class ScriptedProgram(torch.nn.Module):
    """TorchScript program that runs node by node from Python, so that ``torch.export`` sees each op.

    Its parameters and buffers are the program's, under the same names.
    """

    def __init__(self, program: Any) -> None:
        super().__init__()
        # A module in a list does not become a submodule.
        self._mdla_program = [program] if isinstance(program, torch.jit.ScriptModule) else []
        self._mdla_graph = program.inlined_graph
        for module in self._mdla_program:
            _mirror(module, self)

    def forward(self, *inputs: Any) -> Any:
        run = _Tracing()
        modules = []
        for program in self._mdla_program:
            run.mirrors[id(program)] = self
            modules.append(program)
        with torch.fx.traceback.preserve_node_meta():
            return run.run(self._mdla_graph, [*modules, *inputs])


def _mirror(program: torch.nn.Module, module: torch.nn.Module) -> None:
    """Add the parameters, buffers and submodules of a scripted module to ``module``."""
    for name, parameter in program.named_parameters(recurse=False, remove_duplicate=False):
        # torch.jit.load returns plain tensors.
        module.register_parameter(name, torch.nn.Parameter(parameter.detach(), parameter.requires_grad))
    for name, buffer in program.named_buffers(recurse=False, remove_duplicate=False):
        module.register_buffer(name, buffer)
    for name, child in program.named_children():
        module.add_module(name, torch.nn.Module())
        _mirror(child, module.get_submodule(name))


class _Tracing(Run):
    """Run under a tracer.

    ``mirrors`` maps the id of a scripted module to the module that its tensors are read from.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mirrors: dict[int, torch.nn.Module] = {}
        # These references keep the ids valid.
        self._held: list[Any] = []

    def attribute(self, owner: Any, name: str) -> Any:
        value = getattr(owner, name)
        if isinstance(value, torch.nn.Module):
            self.mirrors[id(value)] = getattr(self.mirrors[id(owner)], name)
            self._held.append(value)
        return getattr(self.mirrors[id(owner)], name) if isinstance(value, torch.Tensor) else value

    def node(self, node: Any) -> None:
        file, _, line = source_of(node).rpartition(":")
        if file:
            torch.fx.traceback.set_stack_trace([f'File "{file}", line {line}, in {name_of(node)}\n'])
        super().node(node)
