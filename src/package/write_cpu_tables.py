"""Write the operators, dtypes and processors of ``torchmdla/devices/cpu`` as C++: ``python write_cpu_tables.py FILE``.

The build runs it, where PyTorch and the package need not be importable.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEAD = """\
// Written by src/package/write_cpu_tables.py.
#include "package/cpu_tables.h"

namespace torchmdla {

namespace {

struct Row {
  const char* name;
  const char* overload;
  OpKind kind;
  std::vector<std::pair<std::string, c10::IValue>> where;
};

"""

TAIL = """\
} // namespace

const std::span<const CpuLevel> cpu_levels(levels);

std::shared_ptr<const DeviceTable> cpu_table(bool converts_f16) {
  auto table = std::make_shared<DeviceTable>();
  table->device = "cpu";
  table->dtypes = dtypes();
  if (converts_f16) table->dtypes.insert(at::kHalf);
  for (auto& [name, overload, kind, where] : rows())
    table->ops.emplace(c10::OperatorName(name, overload), OpRule{kind, where});
  return table;
}

} // namespace torchmdla
"""


def main(path: Path) -> None:
    # As in a compiler process: the package's own ``__init__`` imports PyTorch.
    package = types.ModuleType("torchmdla")
    package.__path__ = [str(ROOT / "torchmdla")]
    sys.modules["torchmdla"] = package
    from torchmdla.devices.cpu.target import processors
    from torchmdla.devices.cpu.target.ops import DTYPES, OPS

    levels = [
        f'{{"{name}", "{" ".join(sorted(processors.features_of_level(name) - processors.SYSTEM_FEATURES))}"}}'
        for name in processors.LEVELS
    ]
    ops = [row(name, support.kind, support.where) for name, support in OPS.items()]
    dtypes = [f"c10::ScalarType::{scalar_type(name)}" for name in sorted(DTYPES)]
    text = [
        HEAD,
        f"constexpr CpuLevel levels[] = {{{listed(levels)}}};\n\n",
        f"std::unordered_set<c10::ScalarType> dtypes() {{\n  return {{{listed(dtypes)}}};\n}}\n\n",
        f"std::vector<Row> rows() {{\n  return {{{listed(ops)}}};\n}}\n\n",
        TAIL,
    ]
    path.write_text("".join(text))


def listed(rows: Iterable[str]) -> str:
    return "".join(f"\n    {row}," for row in rows)


def row(name: str, kind: str, where: dict[str, object]) -> str:
    base, _, overload = name.partition(".")
    values = ", ".join(f'{{"{argument}", {literal(value)}}}' for argument, value in where.items())
    return f'{{"{base}", "{overload}", OpKind::{kind}, {{{values}}}}}'


def literal(value: object) -> str:
    """Return a value of ``OpSupport.where`` as an IValue."""
    if value is None:
        return "c10::IValue()"
    if isinstance(value, bool):
        return f"c10::IValue({str(value).lower()})"
    if isinstance(value, float):
        return f"c10::IValue({value!r})"
    if isinstance(value, str):
        return f'c10::IValue(std::string("{value}"))'
    raise TypeError(f"no condition of an operator is a {type(value).__name__}")


def scalar_type(dtype: str) -> str:
    """Return the name in c10 of a dtype of torch."""
    names = {
        "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
        "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "qint8": "QInt8", "quint8": "QUInt8",
    }  # fmt: skip
    return names[dtype]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
