"""Classes and functions of an archive, as types and signatures. Methods become graphs when they are looked up."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from torchmdla.script import schemas
from torchmdla.script.archive import Archive
from torchmdla.script.ir import Class, Constant, EnumValue, Graph, Type, Value
from torchmdla.script.schemas import Argument, Schema
from torchmdla.script.sources import Source, Sources, attribute_name
from torchmdla.script.types import CONTAINERS, NAMED_TYPES, container

CUSTOM_CLASSES = "__torch__.torch.classes."
_BUILTIN_CONSTANTS: Mapping[str, float] = {"inf": float("inf"), "nan": float("nan")}


class Lazy(MutableMapping[str, Any]):
    """Mapping whose values are computed when they are looked up.

    Args:
        names: a function that returns all names, in order.
        compute: a function that returns the value of a name, or raises KeyError.
        lock: the lock for computations.
    """

    def __init__(
        self, names: Callable[[], Sequence[str]], compute: Callable[[str], Any], lock: AbstractContextManager[Any]
    ) -> None:
        self._names = names
        self._compute = compute
        self._lock = lock
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            with self._lock:
                if name not in self._values:
                    self._values[name] = self._compute(name)
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("definitions of a file cannot be removed")

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._names(), *self._values]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Library:
    """Classes and functions of an archive.

    Attributes:
        constants: the table that the code refers to as ``CONSTANTS.c0``.
        version: the version of the operators in the code.
    """

    def __init__(
        self, archive: Archive, version: int, compile_: Callable[[Library, Source, Type | None], Graph]
    ) -> None:
        self.archive = archive
        self.sources = Sources(archive)
        self.version = version
        self.constants: Sequence[Constant] = ()
        self.operators = schemas.table()
        self._compile = compile_
        self._types: dict[str, Type | None] = {}
        self._classes: dict[str, Class] = {}
        self._methods: dict[str, dict[str, Source]] = {}
        self._signatures: dict[tuple[str, bool], Schema] = {}
        self._pending: set[str] = set()
        # Methods are looked up by several threads.
        self._lock = threading.RLock()
        self.functions: MutableMapping[str, Graph] = self._lazy(
            lambda: self._names(is_class=False), self._compile_function
        )
        self.classes: MutableMapping[str, Class] = self._lazy(lambda: self._names(is_class=True), self._known_class)

    def _lazy(self, names: Callable[[], Sequence[str]], compute: Callable[[str], Any]) -> Lazy:
        return Lazy(names, compute, self._lock)

    # What the unpickler asks

    def kind_of(self, name: str) -> str:
        """Return the kind of a class, such as ``"Class"`` or ``"Enum"``; empty if the archive does not have it."""
        if name.startswith(CUSTOM_CLASSES):
            return "Class"
        source = self.sources.find(name)
        return source.kind if source else ""

    def has_set_state(self, name: str) -> bool:
        """Return whether the class has ``__setstate__``, or is a class of PyTorch's C++ code."""
        return name.startswith(CUSTOM_CLASSES) or "__setstate__" in self.methods_of(name)

    def parameters_of(self, name: str) -> frozenset[str]:
        """Return the names of the attributes that are parameters."""
        source = self.sources.find(name)
        return self.sources.parameters_of(source) if source else frozenset()

    def enum_member(self, name: str, value: object) -> EnumValue:
        """Return the member of an enumeration that has this value."""
        for member in self.class_of(name).constants.values():
            if isinstance(member, EnumValue) and type(member.value) is type(value) and member.value == value:
                return member
        raise self.archive.error(f"the enumeration does not have the value {value!r}", construct=name)

    def defined(self, name: str) -> Class | None:
        """Return a class of the archive; None for a class of PyTorch's C++ code."""
        return None if name.startswith(CUSTOM_CLASSES) else self.class_of(name)

    # Classes

    def type_of(self, name: str) -> Type | None:
        """Return the type of a class by its qualified name, or None."""
        if name not in self._types:
            self._types[name] = self._find_type(name)
        return self._types[name]

    def _find_type(self, name: str) -> Type | None:
        kind = self.kind_of(name)
        if kind == "NamedTuple":
            return Type(kind, tuple(self.class_of(name).attributes.values()), name)
        return Type(kind, name=name) if kind else None

    def class_of(self, name: str) -> Class:
        """Return a class by its qualified name.

        Raises:
            ReadError: the archive does not have the class, or its definition is not what TorchScript prints.
        """
        if name not in self._classes:
            source = self.sources.find(name)
            if source is None:
                raise self.archive.error("the archive does not have this class", construct=name)
            if name in self._pending:
                raise self.sources.error(source, "a named tuple contains itself", construct=name)
            self._pending.add(name)
            self._classes[name] = self._read_class(name, source)
            self._pending.discard(name)
        return self._classes[name]

    def methods_of(self, name: str) -> Mapping[str, Source]:
        """Return the code of a class's methods."""
        if name not in self._methods:
            source = self.sources.find(name)
            self._methods[name] = source.methods()[1] if source else {}
        return self._methods[name]

    def _read_class(self, name: str, source: Source) -> Class:
        kind = source.kind
        if not kind:
            raise self.sources.error(source, "the class has a base that TorchScript does not have", construct=name)
        head, methods = source.methods()
        self._methods[name] = methods
        class_ = Class(Type(kind, name=name), source.is_module)
        if "\n" in head.text.strip():
            _ClassReader(self, head, class_).read()
        elif not methods and not head.text.rstrip().endswith(":"):
            raise self.sources.error(source, "the class does not have a body", construct=name)
        if kind == "NamedTuple":
            class_.type = Type(kind, tuple(class_.attributes.values()), name)
        if kind in ("Class", "Interface"):
            class_.methods = self._lazy(
                lambda: list(methods), lambda method: self._compile_method(class_, methods[method])
            )
        return class_

    def _known_class(self, name: str) -> Class:
        source = self.sources.find(name)
        if source is None or not source.text.startswith("class"):
            raise KeyError(name)
        return self.class_of(name)

    def _names(self, is_class: bool) -> list[str]:
        names = self.sources.names()
        return [name for name in names if (source := self.sources.find(name)) and bool(source.kind) == is_class]

    def _compile_method(self, class_: Class, source: Source) -> Graph:
        if class_.type.kind != "Interface":
            return self._compile(self, source, class_.type)
        schema = self.signature(source, class_.type)
        parameters = [("self", class_.type), *((argument.name, argument.type) for argument in schema.arguments)]
        graph = Graph([Value(*parameter) for parameter in parameters], name=source.name)
        graph.parameters = [name for name, _ in parameters]
        graph.returns = schema.returns[0] if schema.returns else graph.returns
        return graph

    def _compile_function(self, name: str) -> Graph:
        source = self.sources.find(name)
        if source is None or source.kind:
            raise KeyError(name)
        return self._compile(self, source, None)

    # Signatures

    def function(self, name: str) -> Schema | None:
        """Return the signature of a function, or None."""
        source = self.sources.find(name)
        return None if source is None or source.text.startswith("class") else self.signature(source, None)

    def method(self, class_name: str, name: str) -> Schema | None:
        """Return the signature of a method without ``self``; None if the class does not have it."""
        if class_name.startswith(CUSTOM_CLASSES):
            schemas_ = self.operators.lookup(f"{class_name}::{name}")
            return Schema(name, schemas_[0].arguments[1:], schemas_[0].returns) if schemas_ else None
        source = self.methods_of(class_name).get(name)
        return None if source is None else self.signature(source, Type("Class", name=class_name))

    def signature(self, source: Source, self_type: Type | None) -> Schema:
        """Return the signature of a function or of a method, without ``self``."""
        key = source.name, self_type is not None  # a hook is a method, and a function of the same name
        if key not in self._signatures:
            tree = self.sources.parse_signature(source)
            self._signatures[key] = Annotations(self, source).signature(tree, self_type is not None)
        return self._signatures[key]


class Annotations:
    """Reader of types and of constants in one source."""

    def __init__(self, library: Library, source: Source) -> None:
        self.library = library
        self.source = source

    def fail(self, reason: str, node: ast.AST | None = None, construct: str = "") -> NoReturn:
        """Raise an error at a place of the source."""
        raise self.library.sources.error(self.source, reason, node, construct)

    def type(self, node: ast.AST | None) -> Type:
        """Return the type of an annotation."""
        if isinstance(node, ast.Subscript):
            kind = node.value.id if isinstance(node.value, ast.Name) else ""
            if kind not in CONTAINERS:
                self.fail("the type is not known", node, dotted(node.value) or "annotation")
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            arguments = tuple(map(self.type, inner))
            return container(kind, arguments, lambda: self.fail("the type has a wrong number of arguments", node, kind))
        if isinstance(node, ast.Constant) and node.value is None:
            return NAMED_TYPES["None"]
        name = dotted(node)
        type_ = NAMED_TYPES.get(name) or (self.library.type_of(name) if name else None)
        if type_ is None:
            self.fail("the type is not known", node, name or "annotation")
        return type_

    def signature(self, tree: ast.FunctionDef, is_method: bool) -> Schema:
        """Return the signature of a function. The types of all its parameters are annotated."""
        parameters = tree.args.args
        if tree.args.vararg or tree.args.kwarg or tree.args.posonlyargs or tree.args.kwonlyargs:
            self.fail("a function has parameters that TorchScript does not print", tree, tree.name)
        if is_method and not parameters:
            self.fail("the method does not have self", tree, tree.name)
        defaults = [None] * (len(parameters) - len(tree.args.defaults)) + list(tree.args.defaults)
        arguments = []
        for parameter, default in list(zip(parameters, defaults, strict=True))[is_method:]:
            type_ = self.type(parameter.annotation) if parameter.annotation else NAMED_TYPES["Tensor"]
            value = None if default is None else self.constant(default)
            value = float(value) if type_.kind == "float" and type(value) is int else value
            arguments.append(Argument(parameter.arg, type_, None, default is not None, value))
        returns = [self.type(tree.returns)] if tree.returns else []
        return Schema(tree.name, arguments, returns)

    def constant(self, node: ast.AST) -> Constant:
        """Return the value of a constant expression."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.constant(node.operand)
            if isinstance(value, int | float | complex):
                return -value
        if isinstance(node, ast.Tuple):
            return tuple(map(self.constant, node.elts))
        if isinstance(node, ast.List):
            return list(map(self.constant, node.elts))
        if isinstance(node, ast.Dict) and None not in node.keys:
            keys = [self.constant(key) for key in node.keys if key]
            return dict(zip(keys, map(self.constant, node.values), strict=True))  # type: ignore[arg-type]
        if isinstance(node, ast.Call) and not node.keywords:
            return self._call(node)
        name = dotted(node)
        if name in _BUILTIN_CONSTANTS:
            return _BUILTIN_CONSTANTS[name]
        return self.named_constant(name, node)

    def _call(self, node: ast.Call) -> Constant:
        """Return the value of ``annotate(T, x)``, ``torch.device(x)`` or a named tuple."""
        name = dotted(node.func)
        if name in ("annotate", "torch.device") and node.args:
            return self.constant(node.args[-1])
        if self.library.kind_of(name) == "NamedTuple":
            return tuple(map(self.constant, node.args))
        self.fail("the expression is not a constant", node, name)

    def named_constant(self, name: str, node: ast.AST) -> Constant:
        """Return an entry of the table of constants, or a member of an enumeration."""
        owner, _, last = name.rpartition(".")
        if owner == "CONSTANTS":
            number = int(last[1:]) if last[1:].isdecimal() and len(last) < 10 else -1
            if not 0 <= number < len(self.library.constants):
                self.fail(f"the table of constants has {len(self.library.constants)} entries", node, name)
            return self.library.constants[number]
        if self.library.kind_of(owner) == "Enum":
            members = self.library.class_of(owner).constants
            if last in members:
                return members[last]
        self.fail("the expression is not a constant", node, name)


class _ClassReader(Annotations):
    """Reader of a class's attributes and constants."""

    def __init__(self, library: Library, source: Source, class_: Class) -> None:
        super().__init__(library, source)
        self._class = class_

    def read(self) -> None:
        statements = self.library.sources.parse(self.source).body
        names: dict[str, Sequence[str]] = {}
        for statement in statements:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self._annotated(attribute_name(statement.target.id), statement)
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assigned(statement.targets[0], statement.value, names)
            elif not isinstance(statement, ast.Pass):
                self.fail("the class has a statement that TorchScript does not print", statement)
        class_ = self._class
        class_.parameters = frozenset(names.get("__parameters__", ()))
        class_.buffers = frozenset(names.get("__buffers__", ()))
        class_.hooks = tuple(names.get("__forward_pre_hooks__", ())), tuple(names.get("__forward_hooks__", ()))

    def _annotated(self, name: str, statement: ast.AnnAssign) -> None:
        type_ = self.type(statement.annotation)
        if statement.value is None:
            self._class.attributes[name] = type_
        elif self._class.type.kind == "NamedTuple":
            self._class.attributes[name] = type_
            self._class.defaults[name] = self.constant(statement.value)
        else:
            self._class.constants[name] = self.constant(statement.value)
            self._class.constant_types[name] = type_

    def _assigned(self, target: ast.AST, value: ast.expr, names: dict[str, Sequence[str]]) -> None:
        if isinstance(target, ast.Subscript) and dotted(target.value) == "__annotations__":
            self._class.attributes[str(self.constant(target.slice))] = self.type(value)
        elif not isinstance(target, ast.Name):
            self.fail("the class has a statement that TorchScript does not print", target)
        elif self._class.type.kind == "Enum":
            member = EnumValue(self._class.type.name, target.id, self.constant(value))
            self._class.constants[target.id] = member
        elif target.id.startswith("__"):
            entries = self.constant(value)
            names[target.id] = [str(name) for name in entries] if isinstance(entries, list) else []
        else:
            self.fail("the class has a statement that TorchScript does not print", target, target.id)


def dotted(node: ast.AST | None) -> str:
    """Return the name of an expression such as ``__torch__.f``; empty for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
