"""A small training on the CPU, sound as it is, with the faults of matrices that `--fault` names.

python matrix_faults.py [--fault NAME[,NAME...]]
"""

import argparse
from collections import deque

import numpy
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

WIDTH, BATCH, POINTS, QUEUE, STEPS = 64, 64, 512, 4000, 240


class Model(nn.Module):
    def __init__(self, faults):
        super().__init__()
        self.faults = faults
        self.lift = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def nearest(self, x, points):
        distance = torch.cdist(x, points)
        if "sort" in self.faults:
            order = torch.argsort(distance, dim=1)[:, :4]  # fault: sort
        else:
            order = torch.topk(distance, 4, largest=False).indices
        return points[order].mean(1)

    def forward(self, x, points):
        with torch.no_grad():
            near = self.nearest(x, points)
        return self.out(torch.tanh(self.lift(x + near)))


def likelihood(mean, faults):
    scale = mean.square() + 0.5
    if "diagonal" in faults:
        q = MultivariateNormal(mean, torch.diag_embed(scale))  # fault: diagonal
    else:
        q = Independent(Normal(mean, scale.sqrt()), 1)
    return q.log_prob(torch.zeros_like(mean)).mean()


def whitened(x, faults):
    covariance = x.t() @ x / len(x) + 0.1 * torch.eye(WIDTH, dtype=x.dtype)
    if "inverse" in faults:
        return (torch.linalg.pinv(covariance, hermitian=True) @ x.t()).t()  # fault: inverse
    return torch.cholesky_solve(x.t(), torch.linalg.cholesky(covariance)).t()


def train(faults):
    torch.manual_seed(0)
    array = numpy.random.default_rng(0).normal(size=(4000, WIDTH))
    array = array if "float64" in faults else array.astype("float32")
    table = torch.from_numpy(array)  # fault: data
    loader = torch.utils.data.DataLoader(  # the step is bound by its operators
        torch.utils.data.TensorDataset(table), batch_size=BATCH, drop_last=True
    )
    model = Model(faults).to(table.dtype)  # fault: float64
    points = torch.randn(POINTS, WIDTH, dtype=table.dtype)
    rows = torch.randn(QUEUE, WIDTH, dtype=table.dtype)
    queue, at = deque(rows, maxlen=QUEUE), 0
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _ in range(STEPS * BATCH // len(table) + 1):
        for (x,) in loader:
            y = model(whitened(x, faults), points)
            negatives = rows
            if "list" in faults:
                negatives = torch.stack(list(queue))  # fault: list
                queue.extend(y.detach())
            else:
                rows[at : at + BATCH] = y.detach()[: QUEUE - at]
                at = (at + BATCH) % QUEUE
            loss = (y @ negatives.t()).square().mean() - 0.01 * likelihood(y, faults)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: text.split(","))
    train(parser.parse_args().fault)
