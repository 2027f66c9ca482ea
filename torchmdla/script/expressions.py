"""Expressions of TorchScript's code, as values of a graph.

It follows ``ir_emitter.cpp`` and ``sugared_value.cpp`` of PyTorch for the expressions that PyTorch prints into files. A
name may stand for a value, or for an object that is called or has attributes: a function, a class, an operator.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from torchmdla.script import upgrades
from torchmdla.script.ir import Graph, Type, Value
from torchmdla.script.library import Annotations, Library, dotted
from torchmdla.script.matching import Matcher
from torchmdla.script.named import (
    BINARY,
    CASTS,
    GLOBALS,
    TENSOR_PROPERTIES,
    ClassName,
    Closure,
    Form,
    Function,
    Method,
    Named,
    Namespace,
    Operator,
    Path,
    mismatch,
    result_of,
    schema_of_named_tuple,
    written_name,
)
from torchmdla.script.schemas import Schema
from torchmdla.script.sources import Source, attribute_name
from torchmdla.script.types import (
    ANY,
    BOOL,
    FLOAT,
    FUNCTION,
    INT,
    NONE,
    STR,
    TENSOR,
    is_subtype,
    may_be,
    substitute,
    unify_all,
)

_INT_LIMIT = 1 << 63


class Expressions(Matcher):
    """Reader of the expressions of one function."""

    def __init__(self, graph: Graph, library: Library, source: Source, version: int) -> None:
        super().__init__(graph, source.record)
        self._version = version
        self.library = library
        self.source = source
        self.annotations = Annotations(library, source)

    def fail(self, reason: str, node: ast.AST | None = None, construct: str = "") -> NoReturn:
        """Raise an error at a place of the function."""
        self.annotations.fail(reason, node, construct)

    def variable(self, name: str, node: ast.AST) -> Named:
        """Return the meaning of a local variable. Statements define it."""
        raise NotImplementedError

    # Values

    def value_of(self, node: ast.expr, hint: Type | None = None) -> Value:
        """Return the value of an expression. ``hint`` is the type that is expected, if it is known."""
        value = self.as_value(self.named(node, hint), node)
        return self.cast(value, ANY) if hint == ANY and value.type != ANY else value

    def as_value(self, named: Named, node: ast.AST) -> Value:
        """Return the value that a name stands for. A function is a constant."""
        if isinstance(named, Value):
            return named
        if isinstance(named, Function):
            return self.constant(named.name, FUNCTION)
        self.fail("the name does not stand for a value", node, dotted(node))

    def named(self, node: ast.expr, hint: Type | None = None) -> Named:
        """Return the meaning of an expression."""
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            self.fail("TorchScript does not print this expression into files", node, type(node).__name__)
        return handler(self, node, hint)

    def _name(self, node: ast.Name, _: Type | None) -> Named:
        return self.variable(node.id, node)

    def global_name(self, name: str, node: ast.AST) -> Named:
        """Return the meaning of a name that is not a local variable."""
        if name in ("inf", "nan"):
            return self.constant(float(name))
        if name not in GLOBALS:
            self.fail("the name is not defined on all paths to this place", node, name)
        return GLOBALS[name]

    def _constant(self, node: ast.Constant, _: Type | None) -> Value:
        value = node.value
        if isinstance(value, bytes) or value is ...:
            self.fail("TorchScript does not print this constant into files", node, repr(value)[:20])
        if type(value) is int and value >= _INT_LIMIT:
            self.fail("the integer has more than 64 bits", node)
        return self.constant(value)

    def _unary(self, node: ast.UnaryOp, _: Type | None) -> Value:
        if isinstance(node.op, ast.USub):
            operand = node.operand
            if isinstance(operand, ast.Constant) and type(operand.value) in (int, float, complex):
                if type(operand.value) is int and operand.value > _INT_LIMIT:
                    self.fail("the integer has more than 64 bits", node)
                return self.constant(-operand.value)  # type: ignore[operator]
            value = self.value_of(operand)
            number: Any = self.constant_value(value)
            return (
                self.constant(-number)
                if type(number) in (int, float)
                else self.call_operator("aten::neg", [value], {}, node)
            )  # type: ignore[operator]
        self.fail("TorchScript does not print this operator into files", node, type(node.op).__name__)

    def _binary(self, node: ast.BinOp, _: Type | None) -> Value:
        name = BINARY.get(type(node.op))
        if name is None:
            self.fail("TorchScript does not print this operator into files", node, type(node.op).__name__)
        return self.call_operator(name, [self.value_of(node.left), self.value_of(node.right)], {}, node)

    def _tuple_literal(self, node: ast.Tuple, _: Type | None) -> Value:
        return self.tuple([self.value_of(element) for element in node.elts])

    def _list_literal(self, node: ast.List, hint: Type | None) -> Value:
        values = [self.value_of(element) for element in node.elts]
        element: Type | None = TENSOR
        if hint is not None:
            if hint.kind != "List":
                self.fail("a list is annotated with another type", node, str(hint))
            element = hint.arguments[0]
        elif values:
            element = unify_all([value.type for value in values])
        if element is None or not all(is_subtype(value.type, element) for value in values):
            self.fail("the elements of a list have different types", node)
        return self.list(element, values)

    def _dict_literal(self, node: ast.Dict, hint: Type | None) -> Value:
        pairs = []
        for key, item in zip(node.keys, node.values, strict=True):
            if key is None:
                self.fail("TorchScript does not print ** into files", node)
            pairs.append((self.value_of(key), self.value_of(item)))
        if hint is not None and hint.kind == "Dict":
            type_ = hint
        elif pairs:
            type_ = Type("Dict", (pairs[0][0].type, pairs[0][1].type))
        else:
            type_ = Type("Dict", (STR, TENSOR))
        for pair in pairs:
            if not all(is_subtype(value.type, part) for value, part in zip(pair, type_.arguments, strict=True)):
                self.fail("the items of a dict have different types", node)
        return self.insert_one("prim::DictConstruct", [value for pair in pairs for value in pair], type_)

    # Subscripts

    def _subscript(self, node: ast.Subscript, wanted: Type | None) -> Value:
        owner = self.value_of(node.value)
        is_tuple = owner.type.kind in ("Tuple", "NamedTuple")
        if isinstance(node.slice, ast.Slice):
            if is_tuple:
                return self._tuple_slice(owner, node.slice, node)
            self.fail("TorchScript does not print this slice into files", node, "slice")
        index = self.value_of(node.slice)
        if is_tuple:
            return self._tuple_item(owner, index, node)
        if owner.type == TENSOR:
            if index.type != INT:
                self.fail("TorchScript does not print this index into files", node, "index of a tensor")
            return self.call_operator("aten::select", [owner, self.constant(0), index], {}, node)
        if owner.type.kind == "Class" and wanted is not None and wanted.kind == "Interface":
            kind = "list" if index.type == INT else "dict"
            return self.insert_one(f"prim::ModuleContainerIndex.{kind}", [owner, index], wanted)
        if owner.type.kind == "Class":
            return self.call(self.attribute(owner, "__getitem__", node), [index], {}, node)
        return self.call_operator("aten::__getitem__", [owner, index], {}, node)

    def _tuple_item(self, owner: Value, index: Value, node: ast.AST) -> Value:
        types, position = owner.type.arguments, self.constant_value(index)
        if index.type != INT:
            self.fail("the index of a tuple is not an integer", node)
        if type(position) is int:
            if not -len(types) <= position < len(types):
                self.fail("the index of a tuple is out of range", node)
            type_ = types[position]
        elif types and all(is_subtype(element, types[0]) for element in types):
            type_ = types[0]
        else:
            self.fail("the index of a tuple of several types is not a constant", node)
        return self.insert_one("prim::TupleIndex", [owner, index], type_)

    def _tuple_slice(self, owner: Value, slice_: ast.Slice, node: ast.AST) -> Value:
        parts = (slice_.lower, slice_.upper, slice_.step)
        bounds: list[Any] = [part and self.constant_value(self.value_of(part)) for part in parts]
        if not all(bound is None or type(bound) is int for bound in bounds) or bounds[2] == 0:
            self.fail("the bounds of a tuple's slice are not constants", node)
        types = owner.type.arguments
        positions = range(len(types))[slice(*bounds)]
        return self.tuple(
            [self.insert_one("prim::TupleIndex", [owner, self.constant(place)], types[place]) for place in positions]
        )

    # Attributes

    def _attribute(self, node: ast.Attribute, _: Type | None) -> Named:
        owner = self.named(node.value)
        name = attribute_name(node.attr)
        if isinstance(owner, Value):
            return self.attribute(owner, name, node)
        if isinstance(owner, Namespace):
            if not owner.name:
                return Namespace(name)
            return owner if name == "autograd" else Operator(f"{owner.name}::{name}")
        if isinstance(owner, Path):
            return self._path(f"{owner.name}.{name}", node)
        if isinstance(owner, ClassName):
            return self._of_class(owner, name, node)
        self.fail("the object does not have attributes", node, name)

    def _path(self, name: str, node: ast.AST) -> Named:
        if name.startswith("CONSTANTS."):
            return self.constant(self.annotations.named_constant(name, node))
        if type_ := self.library.type_of(name):
            return ClassName(type_)
        return Function(name) if self.library.function(name) else Path(name)

    def _of_class(self, owner: ClassName, name: str, node: ast.AST) -> Named:
        if owner.type.kind == "Enum":
            return self.constant(self.annotations.named_constant(f"{owner.type.name}.{name}", node))
        if name == "__new__":
            return Form("__new__")
        if name in self.library.methods_of(owner.type.name):
            return Function(f"{owner.type.name}.{name}")
        self.fail("the class does not have this attribute", node, f"{owner.type.name}.{name}")

    def attribute(self, owner: Value, name: str, node: ast.AST) -> Named:
        """Return an attribute of a value, or a method or operator that is called on it."""
        kind = owner.type.kind
        if kind in ("Class", "Interface"):
            if self.library.method(owner.type.name, name):
                return Method(owner, name)
            attributes = self.library.class_of(owner.type.name).attributes
            if name in attributes:
                return self.insert_one("prim::GetAttr", [owner], attributes[name], {"name": name})
        elif kind == "NamedTuple":
            names = list(self.library.class_of(owner.type.name).attributes)
            if name in names:
                index = names.index(name)
                return self.insert_one("prim::TupleIndex", [owner, self.constant(index)], owner.type.arguments[index])
        elif kind == "Enum" and name in ("name", "value"):
            return self._of_member(owner, name)
        elif kind == "Tensor" and name in TENSOR_PROPERTIES:
            return self.call_operator(TENSOR_PROPERTIES[name], [owner], {}, node)
        elif kind == "Tensor" and name == "tolist":
            return Form("tolist", owner)
        if kind != "Class" and self.library.operators.lookup(f"aten::{name}"):
            return Operator(f"aten::{name}", owner)
        self.fail("the value does not have this attribute", node, f"{owner.type}.{name}")

    def _of_member(self, member: Value, name: str) -> Value:
        if name == "name":
            return self.insert_one("prim::EnumName", [member], STR)
        members = self.library.class_of(member.type.name).constants.values()
        type_ = next((self.constant(getattr(entry, "value", None)).type for entry in members), NONE)
        # PyTorch takes the first overload for all types.
        return self.insert_one("prim::EnumValue.int", [member], type_)

    # Calls

    def _call(self, node: ast.Call, hint: Type | None) -> Named:
        function = self.named(node.func)
        if isinstance(function, Form):
            return _FORMS[function.name](self, function, node, hint)
        arguments = [self.value_of(argument) for argument in node.args]
        keywords = {keyword.arg or "": self.value_of(keyword.value) for keyword in node.keywords}
        return self.call(function, arguments, keywords, node)

    def call(self, function: Named, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.AST) -> Value:
        """Insert a call."""
        if isinstance(function, Operator):
            if function.self_value is not None:
                arguments = [function.self_value, *arguments]
            return self.call_operator(function.name, arguments, keywords, node)
        if isinstance(function, Function):
            return self._call_function(function.name, arguments, keywords, node)
        if isinstance(function, Method):
            return self._call_method(function.owner, function.name, arguments, keywords, node)
        if isinstance(function, ClassName):
            return self._construct(function.type, arguments, keywords, node)
        if isinstance(function, Value) and function.type.kind == "Class":
            return self._call_method(function, "__call__", arguments, keywords, node)
        self.fail("the object cannot be called", node)

    def _match_one(
        self, schema: Schema, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.AST, name: str
    ) -> list[Value]:
        matched = self.match([schema], arguments, keywords)
        if matched is None:
            self.fail(mismatch([schema], arguments), node, name)
        return matched[1]

    def call_operator(
        self, name: str, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.AST
    ) -> Value:
        """Insert a call of an operator, or of the code that replaces it in a file of an old version."""
        candidates = self.library.operators.lookup_at(name, self._version)
        if name == "aten::device" and len(arguments) == 1 and arguments[0].type == STR:
            return self.device(arguments[0])
        if not candidates:
            self.fail("the operator is not known. Import the library that registers it", node, written_name(name))
        matched = self.match(candidates, arguments, keywords)
        if matched is None:
            self.fail(mismatch(candidates, arguments), node, written_name(name))
        schema, inputs, variables = matched
        if schema.upgrader:
            return upgrades.inline(self, schema, inputs)
        types = [substitute(type_, variables) or type_ for type_ in schema.returns]
        outputs = self.insert(schema.name, inputs, types).outputs
        return outputs[0] if len(outputs) == 1 else self.tuple(outputs)

    def _call_function(
        self, name: str, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.AST
    ) -> Value:
        schema = self.library.function(name)
        if schema is None:
            owner, _, method = name.rpartition(".")
            signature = self.library.method(owner, method)
            if signature is None or not arguments:
                self.fail("the function is not known", node, name)
            schema, first, arguments = signature, arguments[:1], arguments[1:]
        else:
            first = ()
        inputs = self._match_one(schema, arguments, keywords, node, name)
        callee = self.constant(name, FUNCTION)
        return self.insert_one("prim::CallFunction", [callee, *first, *inputs], result_of(schema))

    def _call_method(
        self, owner: Value, name: str, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.AST
    ) -> Value:
        schema = self.library.method(owner.type.name, name)
        if schema is None:
            self.fail("the class does not have this method", node, f"{owner.type}.{name}")
        inputs = self._match_one(schema, arguments, keywords, node, f"{owner.type}.{name}")
        return self.insert_one("prim::CallMethod", [owner, *inputs], result_of(schema), {"name": name})

    def _construct(
        self, type_: Type, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.AST
    ) -> Value:
        if type_.kind == "NamedTuple":
            class_ = self.library.class_of(type_.name)
            schema = schema_of_named_tuple(type_, class_.attributes, class_.defaults)
            return self.tuple(self._match_one(schema, arguments, keywords, node, type_.name), type_)
        if type_.kind != "Class":
            self.fail("the class cannot be called", node, type_.name)
        value = self.insert_one("prim::CreateObject", [], type_)
        self._call_method(value, "__init__", arguments, keywords, node)
        return value

    # Forms

    def _arguments(self, node: ast.Call, count: int) -> list[ast.expr]:
        if node.keywords or len(node.args) != count:
            self.fail(f"the call does not have {count} arguments", node, dotted(node.func))
        return node.args

    def _annotate(self, _: Form, node: ast.Call, __: Type | None) -> Value:
        annotation, expression = self._arguments(node, 2)
        type_ = self.annotations.type(annotation)
        value = self.convert(self.value_of(expression, type_), type_)
        if not is_subtype(value.type, type_):
            self.fail(f"a value of type {value.type} is annotated with {type_}", node)
        return self.constant(None, type_) if type_.kind == "Optional" and value.type == NONE else value

    def _unchecked_cast(self, _: Form, node: ast.Call, __: Type | None) -> Value:
        annotation, expression = self._arguments(node, 2)
        type_ = self.annotations.type(annotation)
        value = self.value_of(expression)
        producer = None if isinstance(expression, ast.Name) else self.producers.get(value)
        is_same = producer is not None and producer.op == "prim::unchecked_cast" and value.type == type_
        return value if is_same else self.cast(value, type_)

    def _uninitialized(self, _: Form, node: ast.Call, __: Type | None) -> Value:
        (annotation,) = self._arguments(node, 1)
        return self.insert_one("prim::Uninitialized", [], self.annotations.type(annotation))

    def _getattr(self, _: Form, node: ast.Call, __: Type | None) -> Named:
        owner, name = self._arguments(node, 2)
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            self.fail("the name of an attribute is not a constant", node)
        return self.attribute(self.value_of(owner), name.value, node)

    def _isinstance(self, _: Form, node: ast.Call, __: Type | None) -> Value:
        expression, classes = self._arguments(node, 2)
        nodes = classes.elts if isinstance(classes, ast.Tuple) else [classes]
        types = [self.annotations.type(element) for element in nodes]
        value = self.value_of(expression)
        if any(is_subtype(value.type, type_) for type_ in types):
            return self.constant(True)
        if not any(may_be(value.type, type_) for type_ in types):
            return self.constant(False)
        return self.insert_one("prim::isinstance", [value], BOOL, {"types": types})

    def _cast(self, form: Form, node: ast.Call, __: Type | None) -> Value:
        name, type_ = CASTS[form.name]
        values = [self.value_of(argument) for argument in node.args]
        if len(values) == 1 and is_subtype(values[0].type, type_):
            return values[0]
        if values and values[0].type.kind == "Class":
            return self._call_method(values[0], f"__{form.name}__", [], {}, node)
        return self.call_operator(name, values, {}, node)

    def to_bool(self, value: Value, node: ast.AST) -> Value:
        """Return a condition as a bool."""
        return value if value.type == BOOL else self.call_operator("aten::Bool", [value], {}, node)

    def _print(self, _: Form, node: ast.Call, __: Type | None) -> Value:
        self.insert("prim::Print", [self.value_of(argument) for argument in node.args], [])
        return self.constant(None)

    def _new(self, _: Form, node: ast.Call, __: Type | None) -> Value:
        (argument,) = self._arguments(node, 1)
        class_ = self.named(argument)
        if not isinstance(class_, ClassName) or class_.type.kind != "Class":
            self.fail("__new__ needs a class", node)
        return self.insert_one("prim::CreateObject", [], class_.type)

    def _to_list(self, form: Form, node: ast.Call, hint: Type | None) -> Value:
        if hint is None or form.owner is None:
            self.fail("tolist() is not annotated with a type", node, "tolist")
        dimensions, element = 0, hint
        while element.kind == "List":
            dimensions, element = dimensions + 1, element.arguments[0]
        if element not in _ELEMENTS:
            self.fail("tolist() does not return this type", node, str(hint))
        numbers = [self.constant(dimensions), self.constant(_ELEMENTS.index(element))]
        return self.insert_one("prim::tolist", [form.owner, *numbers], hint)

    def _fork(self, _: Form, node: ast.Call, __: Type | None) -> Value:
        (argument,) = self._arguments(node, 1)
        closure = self.named(argument)
        if not isinstance(closure, Closure):
            self.fail("fork does not have a function that is defined before it", node, "fork")
        return self.fork(closure)

    def fork(self, closure: Closure) -> Value:
        """Insert the call of a closure in another thread. Statements define it."""
        raise NotImplementedError


_ELEMENTS = (INT, FLOAT, BOOL, Type("complex"))

_Handler: TypeAlias = Callable[[Any, Any, Type | None], Named]
_EXPRESSIONS: Mapping[type[ast.expr], _Handler] = {
    ast.Name: Expressions._name,
    ast.Constant: Expressions._constant,
    ast.UnaryOp: Expressions._unary,
    ast.BinOp: Expressions._binary,
    ast.Tuple: Expressions._tuple_literal,
    ast.List: Expressions._list_literal,
    ast.Dict: Expressions._dict_literal,
    ast.Subscript: Expressions._subscript,
    ast.Attribute: Expressions._attribute,
    ast.Call: Expressions._call,
}
_FORMS: Mapping[str, Callable[[Any, Form, ast.Call, Type | None], Named]] = {
    "annotate": Expressions._annotate,
    "unchecked_cast": Expressions._unchecked_cast,
    "uninitialized": Expressions._uninitialized,
    "getattr": Expressions._getattr,
    "isinstance": Expressions._isinstance,
    "print": Expressions._print,
    "fork": Expressions._fork,
    "tolist": Expressions._to_list,
    "__new__": Expressions._new,
    **dict.fromkeys(CASTS, Expressions._cast),
}
