"""Recurrent network that TorchScript can call."""

from __future__ import annotations

from torch import Tensor, nn


class Recurrent(nn.Module):
    """Outputs of an LSTM.

    TorchScript gives ``nn.LSTM`` itself several overloads of ``forward`` and cannot call them.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(features, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.cells(x)[0]
        return outputs
