"""Tests of some models of other packages. `make test-packages` runs all models, in an environment with the packages."""

from __future__ import annotations

import pytest

from packages_of_others import models
from torchmdla.testing.runner import CheckedOutcome, Job, run

SOME = (
    "transformers.bert",
    "transformers.llama",
    "geometric.gcnconv",
    "geometric.edgeconv",
    "segmentation.fpn",
    "torchaudio.wav2vec2",
    "torchvision.swin",
    "e3nn.tensor_product",
    "silero.vad16000",
)


@pytest.mark.parametrize("way", ["torchscript:trace", "torchscript:script", "dynamo:compile"])
@pytest.mark.sampled(0)
def test_some_models(way: str) -> None:
    present = [name for name in models.PROGRAMS if name.partition(":")[0] in SOME]
    if not present:
        pytest.skip("none of the packages is installed")
    jobs = [Job(models.__name__, name, way) for name in present]
    failures = [event for event in run(jobs) if isinstance(event, CheckedOutcome) and not event.expected]
    assert not failures
