"""Train a potential of atoms on forces: the loss has derivatives of the energy, so that its gradients are second ones.

The potential is a small SchNet, and learns the forces of a Morse potential on clusters of several sizes. Eager PyTorch
and ``torch.compile(…, backend="torchmdla")`` train the same weights. Run it as it is: ``python examples/forces.py``.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.architectures import SchNet
from torchmdla.testing.models import clusters

KINDS, CUTOFF = 4, 5.0


class Cluster(NamedTuple):
    """Atoms with the forces on them."""

    positions: Tensor
    kinds: Tensor
    receivers: Tensor
    senders: Tensor
    forces: Tensor


def morse(positions: Tensor, kinds: Tensor, receivers: Tensor, senders: Tensor) -> Tensor:
    """Return the energy that the network learns: each pair of neighbours is at rest at 2.5."""
    distances = (positions[receivers] - positions[senders]).norm(dim=1)
    return 0.5 * (1.0 - torch.exp(2.5 - distances)).square().sum()


def forces(potential: Callable[..., Tensor], positions: Tensor, *others: Tensor, trains: bool = False) -> Tensor:
    """Return the negative gradient of the energy. It can be differentiated again if it ``trains`` the potential."""
    positions = positions.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(potential(positions, *others), positions, create_graph=trains)
    return -gradient


def make_cluster(atoms: int, seed: int) -> Cluster:
    inputs = clusters(1, atoms, torch.Generator().manual_seed(seed))
    return Cluster(*inputs, forces(morse, *inputs))


def loss_of(potential: Callable[..., Tensor], cluster: Cluster) -> Tensor:
    *inputs, target = cluster
    return (forces(potential, *inputs, trains=True) - target).square().mean()


def train(model: nn.Module, potential: Callable[..., Tensor], data: Sequence[Cluster]) -> tuple[list[float], float]:
    """Return the loss of each step and the time of the fastest; ``potential`` is ``model`` or its compiled form."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses, fastest = [], float("inf")
    for cluster in data:
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = loss_of(potential, cluster)
        loss.backward()
        optimiser.step()
        fastest = min(fastest, time.perf_counter() - start)
        losses.append(loss.item())
    return losses, fastest


def gradients(model: nn.Module, potential: Callable[..., Tensor], cluster: Cluster) -> Tensor:
    """Return the gradients of the loss by all parameters, in a row."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    results = torch.autograd.grad(loss_of(potential, cluster), wanted, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in results])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, default=64, help="of the largest cluster (%(default)s)")
    parser.add_argument("--features", type=int, default=64, help="of an atom (%(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="of training (%(default)s)")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = SchNet(KINDS, options.features, 25, 2, CUTOFF)
    compiled_model = copy.deepcopy(model)
    # The numbers of atoms and edges differ from step to step.
    compiled = torch.compile(compiled_model, backend="torchmdla", dynamic=True)
    sizes = [options.atoms * part // 4 for part in (4, 3, 2)]
    data = [make_cluster(sizes[step % len(sizes)], step) for step in range(options.steps)]
    expected = gradients(model, model, data[0])
    for _ in range(3):  # the first calls record and compile
        actual = gradients(compiled_model, compiled, data[0])
    print(f"gradients of {expected.numel()} parameters differ by {(actual - expected).norm() / expected.norm():.1e}")
    eager_losses, eager_seconds = train(model, model, data)
    losses, seconds = train(compiled_model, compiled, data)
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, eager {eager_losses[0]:.3f} → {eager_losses[-1]:.3f}")
    print(f"fastest step {seconds * 1e3:.2f} ms, eager {eager_seconds * 1e3:.2f} ms")
    print(
        f"{torchmdla.stats().specialisations} groups were compiled, {torchmdla.stats().fallbacks or 'none fell back'}"
    )


if __name__ == "__main__":
    main()
