"""Small models with every habit that a capture must cope with, or refuse."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import nn


class Plain(nn.Module):
    """Batch normalisation and dropout: evaluation differs from training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.inner(x))))


class One(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Branches(One):
    def forward(self, x):
        if x.sum() > 0:
            x = self.layer(x)
        return self.layer(x)


class TakesNumber(One):
    def forward(self, x):
        width = int(x.abs().max().item())
        return self.layer(x)[:, :width]


class Numpy(One):
    def forward(self, x):
        import numpy as np

        return torch.from_numpy(np.tanh(self.layer(x).detach().numpy()))


class Draws(One):
    def forward(self, x):
        return self.layer(x) + torch.randn_like(x)


class Keeps(One):
    def forward(self, x):
        self.total = getattr(self, "total", 0) + x.sum()
        return self.layer(x) + self.total


class GivesList(One):
    def forward(self, x):
        return self.layer(x).tolist()


class WritesInput(One):
    def forward(self, x):
        x += 1
        return self.layer(x)


class ByName(One):
    def forward(self, *, a, b=None, flag=True):
        return {"y": self.layer(a) if b is None else self.layer(a) + b, "parts": (a, flag)}


class Length(One):
    """`len` of a tensor is a plain number while torch.export traces."""

    def forward(self, x):
        return self.layer(x.reshape(len(x), -1))


class Centred(One):
    """Each result depends on the other samples of the batch."""

    def forward(self, x):
        out = self.layer(x)
        return out - out.mean(0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 6)  # (time, batch, features)

    def forward(self, x, state=None):
        return self.cells(x, state)


class WithLoss(One):
    def forward(self, x, y=None):
        out = self.layer(x)
        return out if y is None else (out, nn.functional.mse_loss(out, y))


class NeedsLabels(One):
    def forward(self, x, targets):
        out = self.layer(x)
        return out, nn.functional.mse_loss(out, targets)


class LossAlone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Plain()

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.model(x), y)


@dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0


class TakesDataclass(One):
    def forward(self, batch):
        return self.layer(batch.x) * batch.scale


class Record:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class TakesObject(One):
    def forward(self, record):
        return self.layer(record.x)


class Awkward(nn.Module):
    """What `copy.deepcopy` cannot copy, or would leave pointing at the user's own model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.plain_list = [self.layer]
        self.call = self.layer.forward
        self.mask = torch.ones(4)
        self.lock = threading.Lock()
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.cells = nn.GRU(4, 4, batch_first=True)
        self.cells(torch.randn(2, 3, 4))

    def forward(self, x):
        y = self.call(self.plain_list[0](x)) * self.mask
        return self.cells(self.normed(y).unsqueeze(1))[0].squeeze(1)
