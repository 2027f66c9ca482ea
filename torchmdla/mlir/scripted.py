"""TorchScript programs as functions in the Torch dialect.

A graph is run once with eager kernels. What depends on sizes alone (branches, loops, lists, numbers) is known then, so a
flat graph of tensor ops remains, whose values' types were seen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer import TensorMeta, import_graph
from torchmdla.importer.builder import blame
from torchmdla.importer.decompositions import overload_of
from torchmdla.importer.graph import METADATA
from torchmdla.importer.sources import source_of
from torchmdla.importer.types import dtype_number
from torchmdla.mlir.function import FunctionArgument, TorchFunction, contiguous, from_imported


def function_of_graph(graph: torch._C.Graph, inputs: Sequence[Any]) -> TorchFunction:
    """A TorchScript graph for inputs like these, none of which is written to.

    Args:
        inputs: one for each input of the graph; where it asks for ``self``, the scripted module.

    Raises:
        TypeError: another number of inputs.
        CompileError: what happens depends on the data of a tensor, or an op cannot be expressed; names the op and its
            place.
    """
    graph = graph.copy()
    torch._C._jit_pass_inline(graph)
    expected = list(graph.inputs())
    if len(expected) != len(inputs):
        raise TypeError(f"the graph takes {len(expected)} inputs, got {len(inputs)}")
    # Runs may draw random numbers, and write to what they get.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        flat = _Flattening(writes=_writes(graph))
        flat.run(graph, inputs)
        torch._C._jit_pass_remove_mutation(flat.graph)  # type: ignore[attr-defined]
        torch._C._jit_pass_dce(flat.graph)
        _refuse_writes(flat.graph)
        record = _record(flat.graph, [tensor.detach().clone() for tensor in flat.tensors])
    for value in [*flat.graph.inputs(), *flat.graph.outputs()]:
        record[value.debugName()] = contiguous(record[value.debugName()])
    imported = import_graph(flat.graph, record, [])
    metas = [record[value.debugName()] for value in flat.graph.inputs()]
    constants = {
        (index, None): FunctionArgument(f"constant{index}", "parameter", node.output().toIValue())
        for index, node in enumerate(flat.graph.nodes())
        if node.kind() == "prim::Constant" and isinstance(node.output().toIValue(), torch.Tensor)
    }
    weights = [
        name
        for module in inputs
        if isinstance(module, torch.nn.Module)
        for named in (module.named_parameters(), module.named_buffers())
        for name, _ in named
    ]
    return from_imported(imported, list(zip(flat.arguments, metas, strict=True)), constants, weights)  # type: ignore[arg-type]


class ScriptedProgram(torch.nn.Module):
    """A TorchScript module or function that is run node by node from Python, so that ``torch.export`` sees each op.

    Its parameters and buffers are the program's, under the same names.
    """

    def __init__(self, program: Any) -> None:
        super().__init__()
        self._mdla_program = [program] if isinstance(program, torch.jit.ScriptModule) else []  # in a list: no submodule
        self._mdla_graph = program.inlined_graph
        for module in self._mdla_program:
            _mirror(module, self)

    def forward(self, *inputs: Any) -> Any:
        run = _Tracing()
        given = []
        for program in self._mdla_program:
            run.mirrors[id(program)] = self
            given.append(program)
        with torch.fx.traceback.preserve_node_meta():
            return run.run(self._mdla_graph, [*given, *inputs])


def _mirror(program: torch.nn.Module, module: torch.nn.Module) -> None:
    """Gives ``module`` the parameters, buffers and submodules of a scripted module."""
    for name, parameter in program.named_parameters(recurse=False, remove_duplicate=False):
        module.register_parameter(name, parameter)
    for name, buffer in program.named_buffers(recurse=False, remove_duplicate=False):
        module.register_buffer(name, buffer)
    for name, child in program.named_children():
        module.add_module(name, torch.nn.Module())
        _mirror(child, module.get_submodule(name))


class _Run:
    """Runs a graph node by node. Subclasses see every op that has tensors among its results."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}

    def run(self, graph: torch._C.Graph, inputs: Sequence[Any]) -> Any:
        self.define(graph.inputs(), inputs)
        return self.block(graph)

    def block(self, block: Any) -> Any:
        """Runs the nodes of a block; its results, the one if there is one."""
        for node in block.nodes():
            try:
                self.node(node)
            except CompileError as error:
                raise error if error.op else blame(error, _name(node), source_of(node)) from None
            except Exception as error:
                raise CompileError(str(error).partition("\n")[0], op=_name(node), source=source_of(node)) from error
        outputs = self.values(block.outputs())
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def values(self, values: Iterable[Any]) -> list[Any]:
        """What values of the graph are."""
        return [self._seen[value.debugName()] for value in values]

    def define(self, values: Iterable[Any], results: Sequence[Any]) -> None:
        """Says what values of the graph are."""
        for value, result in zip(values, results, strict=True):
            self._seen[value.debugName()] = result

    def attribute(self, owner: Any, name: str) -> Any:
        """What ``prim::GetAttr`` reads."""
        return getattr(owner, name)

    def constant(self, value: Any) -> Any:
        """What ``prim::Constant`` holds."""
        return value

    def op(self, node: Any, arguments: Sequence[Any], results: list[Any]) -> None:
        """An op of PyTorch's registry has been run."""

    def node(self, node: Any) -> None:
        """Runs one node."""
        if node.kind() in _STRUCTURE:
            self.define(node.outputs(), _STRUCTURE[node.kind()](self, node))
            return
        arguments = self.values(node.inputs())
        name = _name(node)
        if name in _ON_VALUES:
            results = [_ON_VALUES[name](*arguments)]
        elif node.kind() in _ON_NUMBERS and not any(isinstance(argument, torch.Tensor) for argument in arguments):
            results = [_ON_NUMBERS[node.kind()](*arguments)]
        else:
            results = _evaluate(node, arguments)
            self.op(node, arguments, results)
        self.define(node.outputs(), results if node.outputsSize() else [])


class _Tracing(_Run):
    """Runs under a tracer. ``mirrors`` has the module to take tensors from, for each scripted module by id."""

    def __init__(self) -> None:
        super().__init__()
        self.mirrors: dict[int, torch.nn.Module] = {}
        # Ids stay while objects do.
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
            torch.fx.traceback.set_stack_trace([f'File "{file}", line {line}, in {_name(node)}\n'])
        super().node(node)


class _Flattening(_Run):
    """Writes every op with tensors among its results into ``graph`` as it runs.

    ``tensors`` are the inputs of that graph, ``arguments`` what they are in the program.

    Args:
        writes: some op writes to a tensor: then weights are copied first.
    """

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.graph = torch._C.Graph()
        self.tensors: list[torch.Tensor] = []
        self.arguments: list[FunctionArgument] = []
        self._writes = writes
        # By id, and held so that ids stay.
        self._made: dict[int, torch._C.Value] = {}
        self._held: list[Any] = []
        # Tensors whose value follows from sizes: numbers of them are known.
        self._known: set[int] = set()
        self._modules: dict[int, str] = {}
        self._weights: dict[str, torch.Tensor] = {}

    def run(self, graph: torch._C.Graph, inputs: Sequence[Any]) -> Any:
        given = []
        for value, input_ in zip(graph.inputs(), inputs, strict=True):
            if isinstance(input_, torch.nn.Module):
                self._modules[id(input_)] = ""
                given.append(input_)
            else:
                given.append(_mapped(input_, lambda tensor, name=value.debugName(): self._input(tensor, name)))
        results = super().run(graph, given)
        outputs = [leaf for leaf in _leaves(results) if isinstance(leaf, torch.Tensor)]
        if not outputs:
            raise CompileError("the program has no tensor among its results")
        for output in outputs:
            self.graph.registerOutput(self._made[id(output)])
        return results

    def attribute(self, owner: Any, name: str) -> Any:
        value = getattr(owner, name)
        path = f"{self._modules[id(owner)]}.{name}".removeprefix(".")
        if isinstance(value, torch.Tensor):
            return self._weight(value, path)
        if isinstance(value, torch.nn.Module):
            self._modules[id(value)] = path
            self._held.append(value)
        return value

    def constant(self, value: Any) -> Any:
        def constant(tensor: torch.Tensor) -> torch.Tensor:
            copy = tensor.detach().clone()
            self._set(copy, self.graph.insertConstant(tensor))
            if tensor.dim() == 0:
                self._known.add(id(copy))
            return copy

        return _mapped(value, constant)

    def op(self, node: Any, arguments: Sequence[Any], results: list[Any]) -> None:
        tensors = [leaf for leaf in _leaves(arguments) if isinstance(leaf, torch.Tensor)]
        known = all(id(tensor) in self._known for tensor in tensors)
        if not any(isinstance(leaf, torch.Tensor) for leaf in _leaves(results)):
            if results and node.kind() not in METADATA and not known:
                raise CompileError("what follows depends on the data of a tensor, which is known only at run time")
            return
        self._clone(node, arguments, results)
        if known and tensors:
            self._known.update(id(leaf) for leaf in _leaves(results) if isinstance(leaf, torch.Tensor))

    def _clone(self, node: Any, arguments: Sequence[Any], results: list[Any]) -> None:
        operands = {
            value.debugName(): self._operand(argument, value.type())
            for value, argument in zip(node.inputs(), arguments, strict=True)
        }
        clone = self.graph.createClone(node, lambda value: operands[value.debugName()])
        self.graph.insertNode(clone)
        for result, output in zip(results, clone.outputs(), strict=True):
            if isinstance(result, list | tuple):
                unpack = self.graph.create("prim::ListUnpack", [output], len(result))
                self.graph.insertNode(unpack)
                for item, element in zip(result, unpack.outputs(), strict=True):
                    element.setType(torch._C.TensorType.get())
                    self._set(item, element)
            else:
                self._set(result, output)

    def _operand(self, argument: Any, type_: Any) -> torch._C.Value:
        if isinstance(argument, torch.Tensor):
            return self._made[id(argument)]
        holds_tensors = isinstance(argument, list | tuple) and any(
            isinstance(leaf, torch.Tensor) for leaf in _leaves(argument)
        )
        if not holds_tensors and argument != []:
            return self.graph.insertConstant(list(argument) if isinstance(argument, tuple) else argument)
        while type_.kind() == "OptionalType":
            type_ = type_.getElementType()
        elements = [self._operand(item, torch._C.TensorType.get()) for item in argument]
        made = self.graph.create("prim::ListConstruct", elements, 1)
        self.graph.insertNode(made)
        made.output().setType(type_)
        return made.output()

    def _input(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return self._argument(tensor, FunctionArgument(name, "input"), copy=True)

    def _weight(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        if path not in self._weights:
            argument = FunctionArgument(path, "parameter", tensor)
            copy = self._writes or not isinstance(tensor, torch.nn.Parameter)
            self._weights[path] = self._argument(tensor, argument, copy)
        return self._weights[path]

    def _argument(self, tensor: torch.Tensor, argument: FunctionArgument, copy: bool) -> torch.Tensor:
        value = tensor.detach().clone() if copy else tensor.detach()
        self._set(value, self.graph.addInput())
        self.tensors.append(tensor)
        self.arguments.append(argument)
        return value

    def _set(self, tensor: Any, value: torch._C.Value) -> None:
        if isinstance(tensor, torch.Tensor):
            self._made[id(tensor)] = value
            self._held.append(tensor)


class _Recording(_Run):
    """Keeps type or value of every value, as groups' records have them."""

    def __init__(self) -> None:
        super().__init__()
        self.record: dict[str, object] = {}

    def define(self, values: Iterable[Any], results: Sequence[Any]) -> None:
        values = list(values)
        super().define(values, results)
        for value, result in zip(values, results, strict=True):
            self.record[value.debugName()] = _described(result)


def _record(graph: torch._C.Graph, inputs: Sequence[Any]) -> dict[str, object]:
    run = _Recording()
    run.run(graph, inputs)
    return run.record


def _described(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return TensorMeta.of(value)
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    return str(value) if isinstance(value, torch.device) else value


def _refuse_writes(graph: torch._C.Graph) -> None:
    for node in graph.nodes():
        if _is_write(node):
            reason = "it writes to an input, a weight or a view, which torch.export can express and TorchScript cannot"
            raise CompileError(reason, op=_name(node), source=source_of(node))


def _writes(block: Any) -> bool:
    """Whether an op of a block writes to a tensor."""
    return any(_is_write(node) or any(_writes(inner) for inner in node.blocks()) for node in block.nodes())


def _is_write(node: Any) -> bool:
    return node.schema() != "(no schema)" and torch._C.parse_schema(node.schema()).is_mutable


def _mapped(tree: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """``tree`` with ``function`` of each tensor in place of it."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: _mapped(value, function) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_mapped(item, function) for item in tree]
    return tuple(_mapped(item, function) for item in tree) if isinstance(tree, tuple) else tree


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for item in tree for leaf in _leaves(item)] if isinstance(tree, list | tuple) else [tree]


def _name(node: Any) -> str:
    """Schema name with overload where there is a schema, else the node's kind."""
    return node.kind() if node.schema() == "(no schema)" else node.schema().partition("(")[0]


def _evaluate(node: Any, arguments: Sequence[Any]) -> list[Any]:
    """Runs one overload; one result for each that the node has."""
    if node.schema() == "(no schema)":
        raise CompileError("it is not supported here")
    schema = torch._C.parse_schema(node.schema())
    keywords = [argument.name for argument in schema.arguments if argument.kwarg_only]
    positional = len(arguments) - len(keywords)
    function = overload_of(_name(node))
    result = function(*arguments[:positional], **dict(zip(keywords, arguments[positional:], strict=True)))
    if not schema.returns:
        return []
    return list(result) if len(schema.returns) > 1 else [result]


# TorchScript's ops on values of any type.
_ON_VALUES: Mapping[str, Callable[..., Any]] = {
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__getitem__.t": operator.getitem,
    "aten::__getitem__.str": operator.getitem,
    "aten::__getitem__.Dict_str": operator.getitem,
    "aten::__getitem__.Dict_int": operator.getitem,
    "aten::__contains__.str": operator.contains,
    "aten::__contains__.int_list": operator.contains,
    "aten::__contains__.str_list": operator.contains,
    "aten::len.t": len,
    "aten::len.Dict_str": len,
    "aten::len.str": len,
    "aten::list.t": list,
    "aten::keys.str": lambda values: list(values.keys()),
    "aten::values.str": lambda values: list(values.values()),
    "aten::items.str": lambda values: list(values.items()),
    "aten::add.t": operator.add,
    "aten::mul.left_t": operator.mul,
    "aten::slice.t": lambda values, start, end, step: values[start:end:step],
    "aten::append.t": lambda values, value: (values.append(value), values)[1],
    "aten::_set_item.t": lambda values, index, value: (operator.setitem(values, index, value), values)[1],
    "aten::_set_item.str": operator.setitem,
    "aten::_unwrap_optional": lambda value: value,
    "aten::format": lambda text, *values: text.format(*values),
    "aten::size": lambda tensor: list(tensor.shape),
    "aten::size.int": lambda tensor, dim: tensor.shape[dim],
    "aten::dim": lambda tensor: tensor.dim(),
    "aten::numel": lambda tensor: tensor.numel(),
    "aten::len.Tensor": len,
}

# On Python's numbers, which may be symbols under torch.export.
_ON_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::div": operator.truediv,
    "aten::neg": operator.neg,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__not__": operator.not_,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
}


def _if(run: _Run, node: Any) -> list[Any]:
    (condition,) = run.values(node.inputs())
    taken = list(node.blocks())[0 if condition else 1]
    run.block(taken)
    return run.values(taken.outputs())


def _loop(run: _Run, node: Any) -> list[Any]:
    most, condition, *carried = run.values(node.inputs())
    (body,) = node.blocks()
    trip = 0
    while condition and trip < most:
        run.define(body.inputs(), [trip, *carried])
        run.block(body)
        condition, *carried = run.values(body.outputs())
        trip += 1
    return carried


def _raise(run: _Run, node: Any) -> list[Any]:
    raise CompileError(f"the program raises: {run.values(node.inputs())[0]}")


def _subgraph(run: _Run, node: Any) -> list[Any]:
    """A part of an optimised graph."""
    graph = node.g("Subgraph")
    run.define(graph.inputs(), run.values(node.inputs()))
    run.block(graph)
    return run.values(graph.outputs())


def _number_tensor(run: _Run, node: Any) -> list[Any]:
    arguments = run.values(node.inputs())
    results = [torch.tensor(arguments[0])]
    run.op(node, arguments, results)
    if isinstance(run, _Flattening):
        run._known.add(id(results[0]))
    return results


def _chunk(run: _Run, node: Any) -> list[Any]:
    arguments = run.values(node.inputs())
    results = list(arguments[0].chunk(node.i("chunks"), node.i("dim")))
    run.op(node, arguments, results)
    return results


_STRUCTURE: Mapping[str, Callable[[_Run, Any], Sequence[Any]]] = {
    "prim::Constant": lambda run, node: [run.constant(node.output().toIValue())],
    "prim::GetAttr": lambda run, node: [run.attribute(run.values(node.inputs())[0], node.s("name"))],
    "prim::ListConstruct": lambda run, node: [run.values(node.inputs())],
    "prim::TupleConstruct": lambda run, node: [tuple(run.values(node.inputs()))],
    "prim::DictConstruct": lambda run, node: [
        dict(zip(*[iter(run.values(node.inputs()))] * 2, strict=True))  # type: ignore[call-overload]
    ],
    "prim::ListUnpack": lambda run, node: list(run.values(node.inputs())[0]),
    "prim::TupleUnpack": lambda run, node: list(run.values(node.inputs())[0]),
    "prim::TupleIndex": lambda run, node: [operator.getitem(*run.values(node.inputs()))],
    "prim::dtype": lambda run, node: [dtype_number(run.values(node.inputs())[0].dtype)],
    "prim::device": lambda run, node: [run.values(node.inputs())[0].device],
    "prim::layout": lambda run, node: [0],
    "prim::Uninitialized": lambda run, node: [None],
    "prim::unchecked_cast": lambda run, node: run.values(node.inputs()),
    "prim::NumToTensor": _number_tensor,
    "prim::ConstantChunk": _chunk,
    "prim::If": _if,
    "prim::Loop": _loop,
    "prim::RaiseException": _raise,
    "prim::DifferentiableGraph": _subgraph,
    "mdla::CompilationGroup": _subgraph,
}
