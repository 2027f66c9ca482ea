"""Steps of training in JAX, of the models that are written here in JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any


def train(module: Any, inputs: tuple[Any, ...], target: Any, rate: float) -> Callable[[], float]:
    """Return a function that trains a copy of ``module`` by a step of SGD, and returns the loss.

    The loss is the mean square. One function of XLA computes the step, and updates parameters in place.
    """
    os.environ["NPROC"] = os.environ["OMP_NUM_THREADS"]  # the threads that XLA makes when it is imported
    import jax
    import jax.numpy as jnp

    forward = MODELS["bert" if hasattr(module, "pooler") else "mlp"]
    parameters = {name: jnp.asarray(value.detach().numpy()) for name, value in module.named_parameters()}
    arrays = tuple(jnp.asarray(value.numpy()) for value in inputs)
    wanted = jnp.asarray(target.numpy())

    def loss(parameters: Any, key: Any) -> Any:
        return jnp.mean((forward(parameters, key, *arrays) - wanted) ** 2)

    def update(parameters: Any, key: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, key)
        return value, {name: parameter - rate * gradients[name] for name, parameter in parameters.items()}

    compiled = jax.jit(update, donate_argnums=0)
    keys = iter(jax.random.split(jax.random.key(0), 100_000))

    def step() -> float:
        nonlocal parameters
        value, parameters = compiled(parameters, next(keys))
        return float(jax.block_until_ready((value, parameters))[0])

    return step


def _linear(parameters: Any, name: str, x: Any) -> Any:
    return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]


def _norm(parameters: Any, name: str, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / (variance + 1e-12) ** 0.5 * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]


def _mlp(parameters: Any, _: Any, x: Any) -> Any:
    import jax

    for name in dict.fromkeys(name.partition(".")[0] for name in parameters):
        x = jax.nn.relu(_linear(parameters, name, x))
    return x


def _bert(parameters: Any, key: Any, tokens: Any, mask: Any) -> Any:
    """Return the hidden states of :class:`torchmdla.testing.architectures.Bert`."""
    import jax
    import jax.numpy as jnp

    heads, dropped = 12, 0.1
    keys = iter(jax.random.split(key, 1000))

    def drop(x: Any) -> Any:
        return jnp.where(jax.random.bernoulli(next(keys), 1 - dropped, x.shape), x / (1 - dropped), 0)

    def split(x: Any) -> Any:
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    x = parameters["token.weight"][tokens] + parameters["position.weight"][: tokens.shape[1]]
    x = _norm(parameters, "norm", x + parameters["segment.weight"][0])
    bias = (1.0 - mask[:, None, None, :].astype(x.dtype)) * -10000.0
    for layer in sorted({name.rsplit(".", 2)[0] for name in parameters if name.startswith("layers")}):
        query, key, value = (split(_linear(parameters, f"{layer}.{part}", x)) for part in ("query", "key", "value"))
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5 + bias
        y = (drop(jax.nn.softmax(scores)) @ value).swapaxes(1, 2).reshape(x.shape)
        x = _norm(parameters, f"{layer}.norm1", x + drop(_linear(parameters, f"{layer}.out", y)))
        z = _linear(parameters, f"{layer}.down", jax.nn.gelu(_linear(parameters, f"{layer}.up", x), approximate=False))
        x = _norm(parameters, f"{layer}.norm2", x + drop(z))
    return x


# Functions of parameters, a random key and inputs.
MODELS: Mapping[str, Callable[..., Any]] = {"mlp": _mlp, "bert": _bert}
