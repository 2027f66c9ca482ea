"""Use a custom compiler for the lazy device: it counts the operators in graphs, and runs the graphs in PyTorch."""

from collections import Counter

import torch
import torch._lazy

from torchmdla import lazy


class Counting:
    """Compiler that accepts every graph; ``compile`` could also return None to reject a graph."""

    def __init__(self):
        self.counts = Counter()

    def compile(self, graph):
        kinds = [node.kind() for node in graph.nodes() if node.kind().startswith("aten::")]
        copy = graph.copy()
        copy.makeMultiOutputIntoTuple()
        function = torch._C._create_function_from_graph("graph", copy)

        def run(*inputs):
            self.counts.update(kinds)
            results = function(*inputs)
            return results if isinstance(results, tuple) else (results,)

        return run


lazy.initialize()
counting = Counting()
lazy.set_backend(counting)

weight = torch.randn(4, 4, device="lazy", requires_grad=True)
optimiser = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    optimiser.zero_grad()
    loss = (torch.randn(8, 4, device="lazy") @ weight).square().mean()
    loss.backward()
    optimiser.step()
    torch._lazy.mark_step()
print(f"loss {loss.item():.4f}")
for kind, times in counting.counts.most_common():
    print(f"{times:4} {kind}")
lazy.set_backend(None)
