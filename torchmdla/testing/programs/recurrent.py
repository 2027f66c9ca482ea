"""Recurrent layers, cells, and recurrences written as loops."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import normal
from torchmdla.testing.programs.program import functions, in_eval, modules, with_gradients

TIME_FIRST, BATCH_FIRST = normal(5, 3, 4), normal(3, 5, 4)


class Unrolled(nn.Module):
    """Cell in a loop over time, with stacked results."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.zeros(x.size(1), 6)
        c = torch.zeros(x.size(1), 6)
        states: list[Tensor] = []
        for step in range(x.size(0)):
            h, c = self.cell(x[step], (h, c))
            states.append(h)
        return torch.stack(states), c


def exponential_average(x: Tensor, weight: float) -> Tensor:
    mean = x[0]
    means = [mean]
    for step in range(1, x.size(0)):
        mean = torch.lerp(mean, x[step], weight)
        means.append(mean)
    return torch.stack(means)


LAYERS = {
    "lstm": (lambda: nn.LSTM(4, 6), TIME_FIRST),
    "lstm_stacked": (lambda: nn.LSTM(4, 6, 2), TIME_FIRST),
    "lstm_both_ways": (lambda: nn.LSTM(4, 6, bidirectional=True, batch_first=True), BATCH_FIRST),
    "lstm_without_bias": (lambda: nn.LSTM(4, 6, bias=False), TIME_FIRST),
    "lstm_projected": (lambda: nn.LSTM(4, 6, proj_size=3), TIME_FIRST),
    "lstm_unbatched": (lambda: nn.LSTM(4, 6), normal(5, 4)),
    "lstm_one_step": (lambda: nn.LSTM(4, 6), normal(1, 3, 4)),
    "gru": (lambda: nn.GRU(4, 6), TIME_FIRST),
    "gru_stacked": (lambda: nn.GRU(4, 6, 2, batch_first=True), BATCH_FIRST),
    "gru_both_ways": (lambda: nn.GRU(4, 6, bidirectional=True), TIME_FIRST),
    "gru_initial": (lambda: nn.GRU(4, 6), TIME_FIRST, normal(1, 3, 6)),
    "rnn_tanh": (lambda: nn.RNN(4, 6), TIME_FIRST),
    "rnn_relu": (lambda: nn.RNN(4, 6, 2, nonlinearity="relu"), TIME_FIRST),
    "gru_cell": (lambda: nn.GRUCell(4, 6), normal(3, 4), normal(3, 6)),
    "rnn_cell": (lambda: nn.RNNCell(4, 6), normal(3, 4), normal(3, 6)),
    "unrolled": (Unrolled, TIME_FIRST),
}

PROGRAMS = [
    *with_gradients(in_eval(modules("recurrent", LAYERS, layers=12))),
    *with_gradients(functions("recurrent", {"exponential_average": (exponential_average, TIME_FIRST, 0.25)}, layers=4)),
]
