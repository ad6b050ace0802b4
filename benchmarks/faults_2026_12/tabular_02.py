"""Churn prediction with strictly typed records."""

from typing import Literal

import numpy as np
import torch
import torch.nn as nn
from pydantic import BaseModel, Field, field_validator
from torch.utils.data import DataLoader, Dataset

PLANS = ("basic", "plus", "family", "student", "business")


class Customer(BaseModel):
    age: int = Field(ge=16, le=110)
    plan: Literal["basic", "plus", "family", "student", "business"]
    months: int = Field(ge=0)
    usage: list[float] = Field(min_length=12, max_length=12)
    churned: bool

    @field_validator("usage")
    @classmethod
    def finite(cls, v):
        assert all(x == x for x in v), "usage has gaps"
        return v

    def features(self):
        plan = [float(self.plan == p) for p in PLANS]
        return [self.age / 100, self.months / 120, *plan, *self.usage]


class Customers(Dataset):
    def __init__(self, n=6000):
        rng = np.random.default_rng(0)
        self.rows = [
            {
                "age": int(rng.integers(18, 90)),
                "plan": PLANS[rng.integers(5)],
                "months": int(rng.integers(0, 120)),
                "usage": rng.gamma(2.0, 0.5, 12).round(3).tolist(),
                "churned": bool(rng.random() < 0.3),
            }
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        record = Customer.model_validate(self.rows[i])
        return torch.tensor(record.features()), torch.tensor(float(record.churned))


class Net(nn.Module):
    def __init__(self, width=576):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(19, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.body(x).squeeze(1)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Customers(), batch_size=512, shuffle=True, drop_last=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(8):
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
