"""Serve an image classifier with Ray Serve, which computes concurrent requests together, whatever their sizes.

    python serve_model.py --port 8000
    curl --data-binary @image.npy http://127.0.0.1:8000/      {"class": 3, "score": 0.41}
    curl http://127.0.0.1:8000/status                         statistics of torchmdla: compiled groups and fallbacks

A request's body is an image in the format of numpy.save: float32, [3, height, width], normalised for the model. The
network is a small one with random weights, or a program of your own (--model) that supports images of any size.

Ray starts on this machine, or RAY_ADDRESS names a cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import io
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.models import MODELS

# Maximum number of requests in a batch, and the time that the first of them waits for others.
MOST, WAIT_SECONDS = 8, 0.02
# Sizes for the warm-up. Images of other sizes work, too.
SIDES = (64, 96)


def random_network(name: str) -> nn.Module:
    """Return the reduced variant of a model of torchmdla's tests, with the same weights in each replica."""
    return MODELS[name].reduced().build()


def best_class(results: dict[str, Tensor]) -> dict[str, Tensor]:
    scores = torch.softmax(results["output"], 1).max(1)
    return {"class": scores.indices, "score": scores.values}


@serve.deployment(max_ongoing_requests=4 * MOST)
class Classifier:
    """Deployment of the classifier.

    Args:
        model: a file, or the name of a model of torchmdla's tests.
    """

    def __init__(self, model: str) -> None:
        self._predictor = torchmdla.ray.Predictor(
            functools.partial(random_network, model) if model in MODELS else model,
            inputs="image",
            postprocess=best_class,
            examples=[{"image": np.zeros((1, 3, side, side), np.float32)} for side in SIDES],
            batch_size=MOST,
            name=Path(model).stem,
        )
        self._requests = self._batches = 0

    async def __call__(self, request: Request) -> Response:
        if request.url.path.endswith("/status"):
            return JSONResponse(self.status())
        try:
            image = image_of(await request.body())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse(await self.classify(image))

    @serve.batch(max_batch_size=MOST, batch_wait_timeout_s=WAIT_SECONDS)
    async def classify(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        self._requests, self._batches = self._requests + len(images), self._batches + 1
        # Run on a thread, so that the replica can accept further requests.
        results = await asyncio.to_thread(self._predictor.predict_rows, [{"image": image} for image in images])
        return [{"class": int(result["class"]), "score": float(result["score"])} for result in results]

    def status(self) -> dict[str, Any]:
        """Return the statistics of this replica."""
        return {"requests": self._requests, "batches": self._batches, **dataclasses.asdict(torchmdla.stats())}


def image_of(body: bytes) -> np.ndarray:
    """Return the image in a request's body.

    Raises:
        ValueError: the body is not an image.
    """
    try:
        image = np.load(io.BytesIO(body), allow_pickle=False)
    except (EOFError, OSError, ValueError):
        raise ValueError("the body is no array as numpy.save writes it") from None
    if image.dtype != np.float32 or image.ndim != 3 or len(image) != 3 or min(image.shape) < 1:
        raise ValueError(f"an image is float32[3, height, width], got {image.dtype}{list(image.shape)}")
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a file, or the name of a test model (default: resnet18)")
    parser.add_argument("--replicas", type=int, default=1, help="copies of the model (default: 1)")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs, and threads, of each (default: 1)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="(default: 8000)")
    options = parser.parse_args()
    if options.model not in MODELS and not os.path.isfile(options.model):
        parser.error(f"--model {options.model}: no such file, and no such test model")
    model = options.model if options.model in MODELS else os.path.abspath(options.model)

    ray.init(logging_level="warning")
    serve.start(http_options={"host": options.host, "port": options.port})
    deployment = Classifier.options(num_replicas=options.replicas, ray_actor_options={"num_cpus": options.cpus})
    serve.run(deployment.bind(model), name="classifier")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # after Ray has set its own handlers
        signal.signal(number, lambda *_: stop.set())
    print(f"http://{options.host}:{options.port}/ is ready", flush=True)
    stop.wait()
    serve.shutdown()


if __name__ == "__main__":
    main()
