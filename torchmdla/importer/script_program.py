"""Programs of TorchScript from modules in this process, in the IR of ``torchmdla.script``."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from torchmdla.importer.script_graph import convert_graph, convert_type
from torchmdla.script.ir import Class, Constant, EnumValue, Graph, Object, Program, Type


def program_of(module: torch.jit.ScriptModule) -> Program:
    """Return the program of a scripted, traced or loaded module. Its tensors are the module's.

    Calls of functions and of methods are inlined, except those of an interface.
    """
    reader = _Reader()
    root = reader.object(module._c)
    return Program(root, reader.classes, {}, version=0, path="")


def program_of_function(function: torch.jit.ScriptFunction[Any, Any]) -> tuple[Program, Graph]:
    """Return the program of a scripted or traced function, and its graph. Calls are inlined."""
    reader = _Reader()
    graph = reader.graph(function, str(function.name))
    root = Object("")
    return Program(root, reader.classes, {graph.name: graph}, version=0, path=""), graph


class _Reader:
    def __init__(self) -> None:
        self.classes: dict[str, Class] = {}
        self._objects: dict[Any, Object] = {}
        self._types: dict[str, str] = {}  # PyTorch's qualified name → name of the class

    def object(self, source: Any) -> Object:
        """Return a module or an object of a class."""
        name = source._type().qualified_name()
        known = self._objects.get(source)
        if known is not None:
            return known
        result = self._objects[source] = Object(name)
        if name not in self.classes:
            self.classes[name] = Class(Type("Class", name=name), is_module=isinstance(source, torch._C.ScriptModule))
            self._read_class(self.classes[name], source)
        for attribute in self.classes[name].attributes:
            result.attributes[attribute] = self._constant(source.getattr(attribute))
        return result

    def _read_class(self, class_: Class, source: Any) -> None:
        for name in source._method_names():
            class_.methods[name] = self.graph(source._get_method(name), f"{class_.type.name}.{name}")
        class_.properties = {
            entry.name: (entry.getter.name, entry.setter.name if entry.setter else None)
            for entry in source._properties()
        }
        if class_.is_module:
            class_.parameters = frozenset(_names(torch._C.ParameterDict(source)))
            class_.buffers = frozenset(_names(torch._C.BufferDict(source)))
            class_.hooks = (
                tuple(hook.name for hook in source._get_forward_pre_hooks()),
                tuple(hook.name for hook in source._get_forward_hooks()),
            )
        for name in dict.fromkeys(_attribute_names(source, class_)):
            class_.attributes[name] = _type_of(source, name)

    def graph(self, method: Any, name: str) -> Graph:
        """Return the graph of a function or method."""
        source = method.inlined_graph
        for node in source.findAllNodes("prim::fork"):
            torch._C._jit_pass_inline(node.g("Subgraph"))
        self._read_created_classes(source)
        self._read_tuples(source)
        graph = convert_graph(source, name)
        for node in graph.walk():
            value = node.attributes.get("value")
            if isinstance(value, EnumValue):
                node.attributes["value"] = _with_value(value)
        arguments = method.schema.arguments
        graph.parameters = [argument.name for argument in arguments]
        graph.defaults = {
            argument.name: argument.default_value for argument in arguments if argument.has_default_value()
        }
        graph.returns = convert_type(method.schema.returns[0].type)
        return graph

    def _read_created_classes(self, graph: Any) -> None:
        """Read the methods of classes whose objects the graph makes. PyTorch finds those that this process scripted."""
        for node in graph.findAllNodes("prim::CreateObject"):
            type_ = node.output().type()
            name = type_.qualified_name() if hasattr(type_, "qualified_name") else type_.annotation_str
            if name in self.classes:
                continue
            class_ = self.classes[name] = Class(Type("Class", name=name))
            for method in type_.method_names():
                function = torch.jit._state._python_cu.find_function(f"{name}.{method}")  # type: ignore[attr-defined]
                if function is not None:
                    class_.methods[method] = self.graph(function, f"{name}.{method}")

    def _read_tuples(self, graph: Any) -> None:
        """Read the fields of named tuples that the graph makes, from the text of their types."""
        for node in graph.findAllNodes("prim::TupleConstruct"):
            type_ = node.output().type()
            name = type_.annotation_str
            if not type_.str().startswith("NamedTuple(") or name in self.classes:
                continue
            fields = _FIELD.findall(_outermost(type_.str().removeprefix("NamedTuple(")))
            attributes = dict(zip(fields, map(convert_type, type_.elements()), strict=True))
            self.classes[name] = Class(convert_type(type_), attributes=attributes)

    def _constant(self, value: Any) -> Constant:
        if isinstance(value, torch._C.ScriptModule):
            return self.object(value)
        if isinstance(value, torch.ScriptObject) and not value._type().qualified_name().startswith(
            "__torch__.torch.classes"
        ):
            return self.object(value)
        if isinstance(value, enum.Enum):
            class_ = type(value)
            return EnumValue(f"__torch__.{class_.__module__}.{class_.__qualname__}", value.name, value.value)
        if isinstance(value, list | tuple):
            items = [self._constant(item) for item in value]
            make: Any = getattr(type(value), "_make", type(value))
            return make(items)
        if isinstance(value, dict):
            return {key: self._constant(item) for key, item in value.items()}
        return value


def _with_value(member: EnumValue) -> EnumValue:
    """Return the member of an enumeration of this process with its value."""
    module, _, name = member.class_name.removeprefix("__torch__.").rpartition(".")
    class_ = getattr(sys.modules.get(module or "__main__"), name, None)
    return member if class_ is None else EnumValue(member.class_name, member.name, class_[member.name].value)


_FIELD = re.compile(r"(\w+) : ")


def _outermost(text: str) -> str:
    """Return a text without what is in parentheses."""
    result, depth = "", 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        result += letter if depth == 0 else ""
    return result


def _names(attributes: Any) -> list[str]:
    return [name for name, _ in attributes.items()]


def _attribute_names(source: Any, class_: Class) -> Iterator[str]:
    """Yield the names of attributes. PyTorch lists those of modules; the graphs have the names of others."""
    if class_.is_module:
        yield from _names(torch._C.ParameterDict(source))
        yield from _names(torch._C.BufferDict(source))
        yield from (name for name, _ in torch._C.ModuleDict(source).items())
        yield "training"
    for graph in class_.methods.values():
        for node in graph.walk():
            if node.op in ("prim::GetAttr", "prim::SetAttr") and node.inputs[0].type.name == class_.type.name:
                yield str(node.attributes["name"])


def _type_of(source: Any, name: str) -> Type:
    value = source.getattr(name)
    if isinstance(value, torch._C.ScriptModule | torch.ScriptObject):
        return Type("Class", name=value._type().qualified_name())
    return Type("Tensor" if isinstance(value, torch.Tensor) else "Any")
