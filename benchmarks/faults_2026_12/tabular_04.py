# Taxi fares: from the table to tensors
import numpy as np
import pandas as pd
import torch
from torch import nn


def make_frame(n=20_000, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "lat1": rng.normal(40.7, 0.05, n),
            "lon1": rng.normal(-74.0, 0.05, n),
            "lat2": rng.normal(40.7, 0.05, n),
            "lon2": rng.normal(-74.0, 0.05, n),
            "hour": rng.integers(0, 24, n),
            "weekday": rng.integers(0, 7, n),
            "passengers": rng.integers(1, 6, n),
        }
    )
    distance = np.hypot(frame.lat1 - frame.lat2, frame.lon1 - frame.lon2)
    rush = frame.hour.isin([8, 9, 17, 18])
    frame["fare"] = 3 + 60 * distance * (1 + 0.4 * rush) + rng.normal(0, 0.3, n)
    return frame


def features(row):
    dy, dx = row["lat2"] - row["lat1"], row["lon2"] - row["lon1"]
    h = 2 * np.pi * row["hour"] / 24
    return pd.Series(
        [
            np.hypot(dy, dx) * 10,
            np.arctan2(dy, dx),
            dy * 10,
            dx * 10,
            np.sin(h),
            np.cos(h),
            float(row["weekday"] >= 5),
            row["passengers"] / 6,
        ]
    )


class FareNet(nn.Module):
    def __init__(self, width=768):
        super().__init__()
        self.inp = nn.Linear(8, width)
        self.mid = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        for layer in self.mid:
            h = h + torch.relu(layer(h))
        return self.out(h).squeeze(1)


frame = make_frame()
rng = np.random.default_rng(1)
torch.manual_seed(0)
net = FareNet()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
for step in range(120):
    part = frame.iloc[rng.integers(0, len(frame), 128)]
    x = torch.tensor(part.apply(features, axis=1).to_numpy(), dtype=torch.float32)
    y = torch.tensor(part["fare"].to_numpy(), dtype=torch.float32)
    loss = nn.functional.huber_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(step, round(float(loss), 4))
