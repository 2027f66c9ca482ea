"""Rendering of ``rich`` tables as text and for notebooks, and the tables of an explanation."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchmdla.report import explanation as data

# Number of kernels of a group that are shown, the slowest; ``to_dict`` has all.
_MOST_KERNELS = 12

# Width of the text without a terminal.
_WIDTH = 120


def as_text(content: RenderableType) -> str:
    """Return the content as text.

    If the standard output is a terminal, the text has the terminal's width and colours.
    """
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal else _WIDTH
    # Brackets belong to the texts: pip install 'torchmdla[mdla]'.
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, markup=False)
    console.print(content)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.rstrip("\n")


def as_html(content: RenderableType) -> str:
    """Return the content as HTML for a notebook."""
    console = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False, markup=False)
    console.print(content)
    style = "font-family: monospace; line-height: 1.2"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def tables(explanation: data.Explanation) -> RenderableType:
    """Return the tables of an explanation."""
    return Group(*_parts(explanation))


def _parts(explanation: data.Explanation) -> Iterator[RenderableType]:
    yield Text(explanation.summary, style="bold")
    peak = explanation.peak
    yield Text(
        f"{time_text(explanation.seconds)} a call, the fastest of {explanation.calls}; with "
        f"{count_text(peak.threads, 'thread')} this machine reaches {peak.gflops:.0f} GFLOP/s and "
        f"{peak.gigabytes:.1f} GB/s"
    )
    if explanation.reasons:
        yield Text("\nwhat does not run compiled, and why", style="bold")
        yield _reasons(explanation.reasons)
    if explanation.outside:
        yield Text("\noperators outside of compiled groups, in a call", style="bold")
        yield _outside(explanation.outside)
    if explanation.device_work:
        yield Text("\nwork of devices, in a call", style="bold")
        yield _device_work(explanation.device_work)
    for group in explanation.groups:
        yield from _group(group, peak)
    if explanation.errors is not None:
        yield _errors(explanation)


def _reasons(reasons: tuple[data.Reason, ...]) -> Table:
    table = new_table()
    for name, justify in (("reason", "left"), ("count", "right"), ("lines", "left"), ("what to do", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for reason in reasons:
        table.add_row(str(reason), str(reason.count), "\n".join(map(place, reason.sources)), reason.advice)
    return table


def _outside(outside: tuple[data.Outside, ...]) -> Table:
    table = new_table()
    table.add_column("operator")
    for name in ("calls", "time", "share"):
        table.add_column(name, justify="right")
    for operator in outside:
        table.add_row(operator.op, str(operator.calls), time_text(operator.seconds), _share(operator.share))
    return table


def _device_work(works: tuple[data.DeviceWork, ...]) -> Table:
    table = new_table()
    for name, justify in (("stream", "left"), ("work", "left"), ("calls", "right"), ("time", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for work in works:
        table.add_row(work.stream, work.name, str(work.calls), time_text(work.seconds))
    return table


def _group(group: data.Group, peak: data.Peak) -> Iterator[RenderableType]:
    ops = ", ".join(f"{op} × {count}" if count > 1 else op for op, count in group.ops.items())
    text = Text(f"\n{group.name}", style="bold")
    text.append(f": {time_text(group.seconds)}, {_share(group.share)} of the time", style="not bold")
    where = f" from {place(group.source)}" if group.source else ""
    lines = [
        f"{count_text(sum(group.ops.values()), 'operator')}{where}: {ops}",
        f"{count_text(group.compiled_calls, 'call')} compiled, {group.recorded_calls} recorded, {group.training_calls} "
        f"with gradients, {sum(group.fallbacks.values())} in PyTorch's interpreter",
    ]
    yield text.append("".join(f"\n{line}" for line in lines), style="not bold")
    for specialisation in group.specialisations:
        yield _specialisation(specialisation)
        if any(kernel.seconds for kernel in specialisation.kernels):
            yield _kernels(specialisation.kernels, peak)


def _specialisation(entry: data.Specialisation) -> Text:
    types = ", ".join(entry.inputs) or "no inputs"
    if not entry.origin:
        return Text(f"  not compiled: {entry.failure}")
    if entry.origin == "package":
        kernels = count_text(len(entry.kernels), "kernel")
        sizes = "for any sizes, " if entry.is_dynamic else ""
        return Text(f"  {sizes}from a package; {kernels}{_comparisons(entry)}")
    what = f"  for any sizes, as {types}" if entry.is_dynamic else f"  for {types}"
    origin = (
        f"compiled in {entry.seconds:.2f} s" if entry.origin == "compiled" else f"found {_ORIGIN_TEXT[entry.origin]}"
    )
    parts = "".join(map(_part, entry.parts))
    needs = f"{size_text(entry.packed_bytes)} of packed weights, {size_text(entry.workspace_bytes)} of workspace"
    kernels = count_text(len(entry.kernels), "kernel")
    return Text(f"{what}\n    because of {entry.cause}; {origin}; {kernels}, {needs}{parts}{_comparisons(entry)}")


def _part(part: data.Part) -> str:
    ops = ", ".join(f"{op} × {count}" if count > 1 else op for op, count in part.ops.items())
    moved = f"; {count_text(part.transfers, 'transfer')} of {size_text(part.bytes)}" if part.transfers else ""
    return f"\n    on {part.device}: {ops}{moved}"


def _comparisons(entry: data.Specialisation) -> str:
    lines = []
    for comparison in entry.comparisons:
        times = [time_text(seconds) for seconds in (comparison.compiled_seconds, comparison.eager_seconds)]
        threads = count_text(comparison.threads, "thread")
        lines.append(
            f"\n    {times[0]} compiled, {times[1]} by PyTorch's operators, {threads}: {choice_text(comparison)} runs"
        )
    return "".join(lines)


def choice_text(comparison: data.Comparison) -> str:
    """Return what runs after a comparison with PyTorch's operators."""
    if comparison.choice == "divided":
        return f"a division around {', '.join(dict.fromkeys(comparison.left_out))}"
    return "the code" if comparison.choice == "compiled" else "the graph of PyTorch's operators"


_ORIGIN_TEXT = {"disk": "on disk", "memory": "in memory"}


def _kernels(kernels: tuple[data.Kernel, ...], peak: data.Peak) -> Table:
    table = new_table()
    for name in ("kernel", "loops", "line"):
        table.add_column(name, overflow="fold")
    for name in ("time", "share", "GFLOP/s", "GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    slowest = sorted(kernels, key=lambda kernel: -kernel.seconds)[:_MOST_KERNELS]
    for kernel in slowest:
        table.add_row(
            "+".join(kernel.ops) or (kernel.symbol if kernel.after else f"fill ({kernel.symbol})"),
            kernel.loops,
            place(kernel.source),
            time_text(kernel.seconds),
            _share(kernel.share),
            _rate(kernel.gflops, peak.gflops),
            _rate(kernel.gigabytes, peak.gigabytes),
        )
    if rest := len(kernels) - len(slowest):
        left = sum(kernel.seconds for kernel in kernels) - sum(kernel.seconds for kernel in slowest)
        table.add_row(f"{rest} others", "", "", time_text(left), "", "", "")
    return table


def _errors(explanation: data.Explanation) -> RenderableType:
    first = explanation.first_difference
    if first:
        where = f" (at {place(first.source)})" if first.source else ""
        return Text(f"\nthe first operator that differs from eager's is {first.op}{where}: {first.difference}")
    known = [error.error for error in explanation.errors or () if error.error is not None]
    worst = max(known, default=0.0)
    return Text(f"\nno operator differs from eager's beyond the tolerance; the largest error is {worst:.2g}")


def new_table() -> Table:
    return Table(header_style="bold")


def place(source: str) -> str:
    """Return ``file:line`` relative to the current folder."""
    return source.removeprefix(os.getcwd() + os.sep)


def count_text(count: int, what: str) -> str:
    """Return a count with its noun: ``1 kernel``, ``2 kernels``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def time_text(seconds: float) -> str:
    """Return ``seconds`` as text such as ``"1.5 ms"``."""
    if not seconds:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def _share(share: float) -> str:
    return f"{share * 100:.1f} %"


def _rate(reached: float, peak: float) -> str:
    return f"{reached:.1f} ({reached / peak * 100:.0f} %)" if reached else "-"


def size_text(count: float) -> str:
    """Return ``count`` bytes as text such as ``"1.5 MiB"``."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
