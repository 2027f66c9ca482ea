"""Write the table of PyTorch's operators that ``torchmdla.read`` uses where PyTorch is not installed.

``setup.py`` runs it for each extension: ``python operator_table.py FILE``. A line is the schema of one operator.
``!`` before it marks an operator that stays in a graph although its results are not used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

# Types in the text of graphs, which differ from those of Python.
TEXTS = {
    "ListType": "{}[]",
    "OptionalType": "{}?",
    "DictType": "Dict({}, {})",
    "FutureType": "Future({})",
    "AwaitType": "Await({})",
    "RRefType": "RRef({})",
}
OTHERS = dict.fromkeys(("VarType", "AnyType", "AnyEnumType", "AnyClassType"), "Tensor") | {"NumberType": "Scalar"}


def schemas() -> Iterator[str]:
    """Return all schemas, sorted by operator. Those of one operator have the order in which PyTorch tries them."""
    names = sorted({schema.name for schema in torch._C._jit_get_all_schemas()})
    for name in names:
        if not name.startswith("torchmdla"):
            for schema in torch._C._jit_get_schemas_for_operator(name):
                yield f"{'!' if has_effects(schema) else ''}{schema}"
    for method in torch._C._jit_get_custom_class_schemas():  # type: ignore[attr-defined]
        yield f"{method.arguments[0].type}::{method}"


def has_effects(schema: Any) -> bool:
    """Return whether PyTorch retains an operator whose results are not used, by a graph that has only this operator."""
    if "!" in str(schema):  # it writes to an argument
        return False
    arguments = ", ".join(f"%a{number} : {text_of(entry.type)}" for number, entry in enumerate(schema.arguments))
    results = ", ".join(f"%r{number} : {text_of(entry.type)}" for number, entry in enumerate(schema.returns))
    inputs = ", ".join(f"%a{number}" for number in range(len(schema.arguments)))
    node = f"{f'{results} = ' if results else ''}{schema.name}({inputs})"
    try:
        graph = torch._C.parse_ir(f"graph({arguments}):\n  {node}\n  %n : NoneType = prim::Constant()\n  return (%n)\n")
        torch._C._jit_pass_dce(graph)
    except RuntimeError:  # the graph matches another overload, which is tried by itself
        return False
    return any(node.kind() != "prim::Constant" for node in graph.nodes())


def text_of(type_: Any) -> str:
    """Return a type in the text of graphs."""
    inner = [text_of(element) for element in type_.containedTypes()]
    if type_.kind() == "TupleType":
        return f"({', '.join(inner)})"
    if type_.kind() in TEXTS:
        return TEXTS[type_.kind()].format(*inner)
    return OTHERS.get(type_.kind()) or str(type_.annotation_str)


def upgraders() -> Iterator[str]:
    """Return the upgraders. Their code is printed from their graphs, which have a single return."""
    entries = torch._C._get_upgraders_entry_map()
    for operator, changes in sorted(torch._C._get_operator_version_map().items()):
        for change in changes:
            # Some of the operators are not among the functions of Python's torch.
            source = entries[change.upgrader_name].replace("torch.", "torch.ops.aten.")
            function = getattr(torch.jit.CompilationUnit(source), change.upgrader_name)
            yield f"{operator} {change.bumped_at_version}\n{change.old_schema}\n{function.code.strip()}\n"


def main(file: Path) -> None:
    """Write the table."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(schemas()) + "\n# upgraders\n" + "\n".join(upgraders()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
