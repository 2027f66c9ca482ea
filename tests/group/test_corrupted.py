"""Compiled calls, then calls with arguments of the same types, some of which eager refuses.

The calls with corrupted arguments must raise eager's error, or return eager's values.
"""

from __future__ import annotations

from collections.abc import Iterable

import corrupted
import pytest

from torchmdla.testing.runner import CheckedOutcome, Job, run

pytest.importorskip("expecttest")

# The operators of PyTorch's OpInfo database that read elements of their tensors.
CHECKED = """
__getitem__ _unsafe_masked_index _unsafe_masked_index_put_accumulate gather index_add index_copy index_fill index_put
index_reduce.amax index_select put scatter scatter_add scatter_reduce.amax take take_along_dim nn.functional.embedding
nn.functional.binary_cross_entropy nn.functional.cross_entropy nn.functional.nll_loss nn.functional.multi_margin_loss
nn.functional.multilabel_margin_loss nn.functional.max_unpool2d bernoulli multinomial normal histogram narrow clamp
cholesky linalg.inv linspace.tensor_overload
"""

# The operators that the cpu device supports and that have a start, an end, a place or a count.
PLACED = """
narrow select.int slice.Tensor select_scatter slice_scatter split.Tensor split.sizes chunk tensor_split.sections
unbind.int unfold diagonal roll flip repeat repeat_interleave.self_int tril cumsum gather index_select take_along_dim
squeeze.dim unsqueeze transpose.int permute flatten.using_ints unflatten.int movedim.int softmax.int constant_pad_nd
arange.start_step linspace eye
"""

# The memory limit of a process: some counts are absurdly large.
_MEMORY = 8 << 30

# The programs that ``make test`` runs: a frontend, and the names of the corrupted programs.
OFTEN = {
    "torchscript:trace": [f"corrupted.opinfo.{name}.float32" for name in CHECKED.split()],
    "torchscript:script": [f"corrupted.numbers.aten::{name}" for name in PLACED.split()],
}


def failures(names: Iterable[str], way: str, limit: int) -> list[str]:
    """Return a line for each wrong program, from ``limit`` samples of each name, run in a separate process."""
    jobs = [Job(corrupted.__name__, name, way, limit=limit) for name in names]
    results = [event for event in run(jobs, memory=_MEMORY) if isinstance(event, CheckedOutcome)]
    assert results
    wrong = [result.outcome for result in results if not result.expected]
    return [f"{outcome.status} {outcome.program}: {outcome.detail}" for outcome in wrong]


@pytest.mark.parametrize("way", OFTEN)
@pytest.mark.sampled(0)
def test_often(way: str) -> None:
    assert [name for name in OFTEN[way] if name not in corrupted.PROGRAMS] == []
    assert failures(OFTEN[way], way, 2 if way == "torchscript:script" else 1) == []


@pytest.mark.full
@pytest.mark.parametrize("way", [*OFTEN, "dynamo:compile", "lazy:step"])
def test_all(way: str) -> None:
    assert failures(corrupted.PROGRAMS, way, 2) == []
