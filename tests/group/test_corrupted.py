"""Compiled calls, then calls with arguments of the same types of which eager refuses some: its error, or its values."""

from __future__ import annotations

from collections.abc import Iterable

import corrupted
import pytest

from torchmdla.testing.runner import Job, Judged, run

pytest.importorskip("expecttest")

# The operators of PyTorch's database that look at elements of their tensors.
CHECKED = """
opinfo.__getitem__.float32 opinfo._unsafe_masked_index.float32 opinfo._unsafe_masked_index_put_accumulate.float32
opinfo.gather.float32 opinfo.index_add.float32 opinfo.index_copy.float32 opinfo.index_fill.float32
opinfo.index_put.float32 opinfo.index_reduce.amax.float32 opinfo.index_select.float32 opinfo.put.float32
opinfo.scatter.float32 opinfo.scatter_add.float32 opinfo.scatter_reduce.amax.float32 opinfo.take.float32
opinfo.take_along_dim.float32 opinfo.nn.functional.embedding.float32 opinfo.nn.functional.binary_cross_entropy.float32
opinfo.nn.functional.cross_entropy.float32 opinfo.nn.functional.nll_loss.float32
opinfo.nn.functional.multi_margin_loss.float32 opinfo.nn.functional.multilabel_margin_loss.float32
opinfo.nn.functional.max_unpool2d.float32 opinfo.bernoulli.float32 opinfo.multinomial.float32 opinfo.normal.float32
opinfo.histogram.float32 opinfo.quantile.float32 opinfo.narrow.float32 opinfo.clamp.float32 opinfo.cholesky.float32
opinfo.linalg.inv.float32 opinfo.linspace.tensor_overload.float32
""".split()

# Those that the cpu device takes and that have a start, an end, a place or a count.
PLACED = """
aten::narrow aten::select.int aten::slice.Tensor aten::select_scatter aten::slice_scatter aten::split.Tensor
aten::split.sizes aten::chunk aten::tensor_split.sections aten::unbind.int aten::unfold aten::diagonal
aten::roll aten::flip aten::repeat aten::repeat_interleave.self_int aten::tril aten::cumsum aten::gather
aten::index_select aten::take_along_dim aten::squeeze.dim aten::unsqueeze aten::transpose.int aten::permute
aten::flatten.using_ints aten::unflatten.int aten::movedim.int aten::softmax.int aten::constant_pad_nd
aten::arange.start_step aten::linspace aten::eye
""".split()


def failures(names: Iterable[str], way: str, limit: int | None) -> list[str]:
    """Return what is wrong of programs, each of which was compiled, in a process of their own."""
    jobs = [Job(corrupted.__name__, f"corrupted.{name}", way, limit=limit) for name in names]
    results = [event for event in run(jobs) if isinstance(event, Judged)]
    assert results
    wrong = [result for result in results if not result.expected]
    return [f"{one.outcome.status} {one.outcome.program}: {one.outcome.detail}" for one in wrong]


def test_every_name_exists() -> None:
    names = [*CHECKED, *(f"numbers.{name}" for name in PLACED)]
    assert [name for name in names if f"corrupted.{name}" not in corrupted.PROGRAMS] == []


def test_values() -> None:
    assert failures(CHECKED, "torchscript:trace", 1) == []


def test_integers() -> None:
    assert failures([f"numbers.{name}" for name in PLACED], "torchscript:script", 1) == []


_WAYS = ("torchscript:trace", "torchscript:script", "dynamo:compile", "lazy:step")


@pytest.mark.full
@pytest.mark.parametrize("way", _WAYS)
def test_all(way: str) -> None:
    assert failures((name.removeprefix("corrupted.") for name in corrupted.PROGRAMS), way, 2) == []
