"""Statements of TorchScript's code, as graphs in SSA form.

Variables become values: those that a branch or a loop assigns become outputs of ``prim::If`` and ``prim::Loop``, as in
``ir_emitter.cpp`` and ``convert_to_ssa.cpp`` of PyTorch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchmdla.script.cleanup import clean, move_constants_in
from torchmdla.script.expressions import Expressions
from torchmdla.script.ir import Block, Graph, Type, Value
from torchmdla.script.library import Library
from torchmdla.script.named import Closure, Named
from torchmdla.script.sources import Source, attribute_name
from torchmdla.script.types import ANY, INT, NONE, TENSOR, is_subtype, unify

_MOST_ITERATIONS = (1 << 63) - 1


@dataclass(slots=True)
class _Variable:
    """Meaning of a local variable. ``type`` is the declared type of a value."""

    named: Named
    type: Type | None = None


class _Frame(dict[str, _Variable]):
    """Variables that one block assigns."""

    def __init__(self, outer: _Frame | None = None) -> None:
        super().__init__()
        self.outer = outer

    def find(self, name: str) -> _Variable | None:
        """Return a variable of this frame, or of those around it."""
        frame: _Frame | None = self
        while frame is not None:
            if name in frame:
                return frame[name]
            frame = frame.outer
        return None


class _Emitter(Expressions):
    """Reader of one function."""

    def __init__(self, graph: Graph, library: Library, source: Source, version: int) -> None:
        super().__init__(graph, library, source, version)
        self._frame = _Frame()

    def function(self, tree: ast.FunctionDef, self_type: Type | None) -> None:
        """Fill the graph from a function."""
        graph, schema = self.graph, self.library.signature(self.source, self_type)
        types = [*([self_type] if self_type else []), *(argument.type for argument in schema.arguments)]
        if len(types) != len(tree.args.args):
            self.fail("the parameters are not what TorchScript prints", tree, tree.name)
        for parameter, type_ in zip(tree.args.args, types, strict=True):
            value = self.input(graph, type_)
            value.name = parameter.arg
            self._frame[parameter.arg] = _Variable(value, type_)
            graph.parameters.append(parameter.arg)
        graph.defaults = {argument.name: argument.default for argument in schema.arguments if argument.has_default}
        result = self._body(tree.body, schema.returns[0] if schema.returns else None)
        graph.outputs = [result]
        graph.returns = schema.returns[0] if schema.returns else result.type

    def _body(self, statements: Sequence[ast.stmt], declared: Type | None) -> Value:
        """Emit the statements of a function, and return the result."""
        for statement in statements:
            if isinstance(statement, ast.Return):
                return self._result(statement, declared)
            self._statement(statement)
        if declared is not None and declared != NONE:
            self.fail("the function does not return a value", statements[-1])
        return self.constant(None)

    def _result(self, statement: ast.Return, declared: Type | None) -> Value:
        self.line = self.source.line + statement.lineno
        value = self.value_of(statement.value, declared) if statement.value else self.constant(None)
        if declared is None:
            return value
        if declared != TENSOR or value.type != NONE:
            value = self.convert(value, declared)
        if not is_subtype(value.type, declared):
            self.fail(f"the function returns a value of type {value.type}, and declares {declared}", statement)
        return self.cast(value, ANY) if declared == ANY and value.type != ANY else value

    def _statements(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        self.line = self.source.line + statement.lineno
        handler = _STATEMENTS.get(type(statement))
        if handler is None:
            self.fail("TorchScript does not print this statement into files", statement, type(statement).__name__)
        handler(self, statement)

    # Variables

    def variable(self, name: str, node: ast.AST) -> Named:
        variable = self._frame.find(name)
        if variable is None:
            return self.global_name(name, node)
        named = variable.named
        if not isinstance(named, Value) or variable.type is None or named.type == variable.type:
            return named
        loaded = self.value(variable.type)
        self.replaced[loaded] = self.replaced.get(named, named)
        return loaded

    def _assign(self, name: str, named: Named, node: ast.AST, annotated: Type | None = None) -> None:
        outer = self._frame.outer.find(name) if self._frame.outer is not None else None
        if outer is not None:
            if not isinstance(outer.named, Value) or outer.type is None or not isinstance(named, Value):
                self.fail("the variable stands for a value on one path only", node, name)
            named = self.convert(named, outer.type)
            if not is_subtype(named.type, outer.type):
                self.fail(f"the variable of type {outer.type} is assigned a value of type {named.type}", node, name)
        type_ = None
        if isinstance(named, Value):
            type_ = annotated or named.type
            if not is_subtype(named.type, type_):
                self.fail(f"the variable of type {type_} is assigned a value of type {named.type}", node, name)
            if named.name.isdecimal() and name.strip("_0123456789"):
                named.name = f"{name}.{named.name}"
        self._frame[name] = _Variable(named, type_)

    def _annotated_assignment(self, node: ast.AnnAssign) -> None:
        if not isinstance(node.target, ast.Name) or node.value is None:
            self.fail("TorchScript does not print this statement into files", node, "annotation")
        type_ = self.annotations.type(node.annotation)
        self._assign(node.target.id, self.named(node.value, type_), node, type_)

    def _assignment(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            self.fail("TorchScript does not print this statement into files", node, "a = b = c")
        target = node.targets[0]
        if isinstance(target, ast.Name):
            self._assign(target.id, self.named(node.value), node)
        elif isinstance(target, ast.Tuple):
            self._unpack(target, node.value)
        elif isinstance(target, ast.Attribute):
            self._set_attribute(target, node.value)
        else:
            self.fail("TorchScript does not print this assignment into files", node, type(target).__name__)

    def _unpack(self, target: ast.Tuple, expression: ast.expr) -> None:
        if isinstance(expression, ast.Tuple):
            values: Sequence[Value] = [self.value_of(element) for element in expression.elts]
        else:
            value = self.value_of(expression)
            if value.type.kind == "List":
                types = [value.type.arguments[0]] * len(target.elts)
                values = self.insert("prim::ListUnpack", [value], types).outputs
            elif value.type.kind in ("Tuple", "NamedTuple"):
                values = self.unpack(value)
            else:
                self.fail(f"a value of type {value.type} cannot be unpacked", expression)
        if len(values) != len(target.elts):
            self.fail(f"{len(values)} values are unpacked into {len(target.elts)} variables", target)
        for element, value in zip(target.elts, values, strict=True):
            if not isinstance(element, ast.Name):
                self.fail("TorchScript does not print this assignment into files", target, type(element).__name__)
            self._assign(element.id, value, target)

    def _set_attribute(self, target: ast.Attribute, expression: ast.expr) -> None:
        owner, name = self.value_of(target.value), attribute_name(target.attr)
        attributes = self.library.class_of(owner.type.name).attributes if owner.type.kind == "Class" else {}
        if name not in attributes:
            self.fail("the object does not have this attribute", target, f"{owner.type}.{name}")
        value = self.value_of(expression)
        if not is_subtype(value.type, attributes[name]):
            self.fail(f"the attribute of type {attributes[name]} is set to a value of type {value.type}", target, name)
        self.insert("prim::SetAttr", [owner, value], [], {"name": name})

    # Control flow

    def _if(self, node: ast.If) -> None:
        condition = self.to_bool(self.value_of(node.test), node)
        static = self.constant_value(condition)
        if isinstance(static, bool):
            self._statements(node.body if static else node.orelse)
            return
        branch = self.insert("prim::If", [condition], [])
        outer, frames = self._frame, []
        for statements in (node.body, node.orelse):
            branch.blocks.append(Block())
            self._frame = _Frame(outer)
            frames.append(self._frame)
            with self.inside(branch.blocks[-1]):
                self._statements(statements)
        self._frame = outer
        for name in sorted({name for frame in frames for name in frame}):
            variables = [frame.find(name) for frame in frames]
            self._join(name, branch, variables)

    def _join(self, name: str, branch: Any, variables: Sequence[_Variable | None]) -> None:
        """Make a variable an output of a branch, if both blocks define it with types that have a common type."""
        values = [variable.named for variable in variables if variable and isinstance(variable.named, Value)]
        types = [variable.type for variable in variables if variable and variable.type]
        if len(values) != 2 or len(types) != 2:
            return
        common = unify(*types)
        if common is None:
            if self._frame.find(name):
                self.fail(f"the variable has the types {types[0]} and {types[1]} on two paths", construct=name)
            return
        for block, value in zip(branch.blocks, values, strict=True):
            block.outputs.append(value)
        output = self.value(common)
        branch.outputs.append(output)
        self.producers[output] = branch
        if name.strip("_0123456789"):
            output.name = f"{name}.{output.name}"
        self._frame[name] = _Variable(output, common)

    def _for(self, node: ast.For) -> None:
        call = node.iter
        is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        if not is_range or len(call.args) != 1 or call.keywords or not isinstance(node.target, ast.Name) or node.orelse:  # type: ignore[attr-defined]
            self.fail("TorchScript prints loops over range(n) only", node, "for")
        count = self.value_of(call.args[0])  # type: ignore[attr-defined]
        if count.type != INT:
            self.fail("the number of iterations is not an integer", node, "for")
        self._loop(count, None, node.body, node.target.id, node)

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            self.fail("TorchScript does not print this statement into files", node, "while … else")
        self._loop(self.constant(_MOST_ITERATIONS), node.test, node.body, "", node)

    def _loop(self, count: Value, test: ast.expr | None, body: Sequence[ast.stmt], counter: str, node: ast.AST) -> None:
        """Emit a loop whose variables of the outer frames that the body assigns are carried."""
        condition = self._condition(test)
        carried: dict[str, _Variable] = {}
        for name in sorted(set(_assigned(body))):
            variable = self._frame.find(name)
            if variable is not None and isinstance(variable.named, Value):
                carried[name] = variable
        initial = [variable.named for variable in carried.values() if isinstance(variable.named, Value)]
        loop = self.insert("prim::Loop", [count, condition, *initial], [])
        block = Block()
        loop.blocks.append(block)
        outer = self._frame
        inputs = _Frame(outer)
        number = self.input(block, INT)
        for name, variable in carried.items():
            inputs[name] = _Variable(self.input(block, variable.type or TENSOR), variable.type)
        self._frame = _Frame(inputs)
        with self.inside(block):
            if counter:
                self._assign(counter, number, node)
            self._statements(body)
            block.outputs.append(self._condition(test))
        for name, variable in carried.items():
            final = self._frame.find(name)
            block.outputs.append(final.named)  # type: ignore[union-attr, arg-type]
            output = self.value(variable.type or TENSOR)
            self.producers[output] = loop
            loop.outputs.append(output)
            if name.strip("_0123456789"):
                output.name = f"{name}.{output.name}"
            outer[name] = _Variable(output, variable.type)
        self._frame = outer

    def _condition(self, test: ast.expr | None) -> Value:
        return self.constant(True) if test is None else self.to_bool(self.value_of(test), test)

    def _with(self, node: ast.With) -> None:
        if len(node.items) != 1:
            self.fail("TorchScript does not print this statement into files", node, "with a, b")
        item = node.items[0]
        owner = self.value_of(item.context_expr)
        schema = self.library.method(owner.type.name, "__enter__") if owner.type.kind == "Class" else None
        if schema is None:
            self.fail("the object does not have __enter__", node, str(owner.type))
        entered = self.insert_one("prim::Enter", [owner], schema.returns[0] if schema.returns else NONE)
        if isinstance(item.optional_vars, ast.Name):
            self._assign(item.optional_vars.id, entered, node)
        self._statements(node.body)
        self.insert("prim::Exit", [owner], [TENSOR])  # PyTorch does not set the type of this result

    def _closure(self, node: ast.FunctionDef) -> None:
        if node.args.args:
            self.fail("a function inside a function has parameters", node, node.name)
        block = Block()
        outer = self._frame
        self._frame = _Frame(outer)
        with self.inside(block):
            block.outputs.append(self._body(node.body, None))
        self._frame = outer
        outer[node.name] = _Variable(Closure(block))

    def fork(self, closure: Closure) -> Value:
        subgraph = Graph(name="fork", nodes=closure.block.nodes, outputs=closure.block.outputs)
        captured = move_constants_in(self, subgraph)
        result = closure.block.outputs[0].type if closure.block.outputs else NONE
        clean(subgraph, self.library.operators)
        return self.insert_one("prim::fork", captured, Type("Future", (result,)), {"Subgraph": subgraph})

    def _expression(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.named(node.value)

    def _pass(self, _: ast.Pass) -> None:
        pass

    def _return(self, node: ast.Return) -> None:
        self.fail("TorchScript prints return at the end of a function only", node, "return")


_STATEMENTS: Mapping[type[ast.stmt], Callable[[Any, Any], None]] = {
    ast.Assign: _Emitter._assignment,
    ast.AnnAssign: _Emitter._annotated_assignment,
    ast.Expr: _Emitter._expression,
    ast.If: _Emitter._if,
    ast.For: _Emitter._for,
    ast.While: _Emitter._while,
    ast.With: _Emitter._with,
    ast.FunctionDef: _Emitter._closure,
    ast.Pass: _Emitter._pass,
    ast.Return: _Emitter._return,
}


def _assigned(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Return the names of all variables that statements assign, those of inner functions aside."""
    for statement in statements:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
        elif isinstance(statement, ast.AnnAssign | ast.For) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.With):
            variables = [item.optional_vars for item in statement.items]
            yield from (variable.id for variable in variables if isinstance(variable, ast.Name))
        for name in ("body", "orelse"):
            if not isinstance(statement, ast.FunctionDef):
                yield from _assigned(getattr(statement, name, ()))


def compile_function(library: Library, source: Source, self_type: Type | None, version: int | None = None) -> Graph:
    """Return the graph of a function, or of a method of a type.

    Args:
        library: the archive.
        source: the code.
        self_type: the type of ``self``; None for a function.
        version: the version of the operators; None is that of the archive.

    Raises:
        ReadError: the code is not what TorchScript prints, or refers to something that the archive does not have.
    """
    try:
        tree = library.sources.parse(source)
        if not isinstance(tree, ast.FunctionDef):
            raise library.sources.error(source, "the code is not a function")
        graph = Graph(name=source.name)
        emitter = _Emitter(graph, library, source, library.version if version is None else version)
        emitter.function(tree, self_type)
        emitter.finish()
        clean(graph, library.operators)
    except RecursionError as error:
        raise library.sources.error(source, "the code is nested too deeply") from error
    return graph
