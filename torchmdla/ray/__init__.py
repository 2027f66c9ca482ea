"""Models in Ray actors: batches of Ray Data, requests of Ray Serve. See docs/ray.md.

Inside this package, ``import ray`` imports Ray itself.
"""

from __future__ import annotations

try:
    import ray.util.metrics  # noqa: F401  (a folder of the name "ray" would be enough for "import ray")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"torchmdla.ray needs the package ray: pip install 'torchmdla[ray]' ({error})", name=error.name
    ) from None

from torchmdla.ray.predictor import Predictor

__all__ = ["Predictor"]
