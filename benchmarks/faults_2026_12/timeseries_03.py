import datetime as dt
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

FORMAT = "%Y-%m-%d %H:%M:%S"


def load_rows(n=9000):
    """What the export of the meter looks like: time stamp, reading."""
    start = dt.datetime(2021, 1, 1)
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(n, generator=g).tolist()
    rows = []
    for i in range(n):
        when = start + dt.timedelta(minutes=15 * i)
        load = 2 + math.sin(when.hour / 24 * 6.28) + 0.5 * (when.weekday() >= 5) + 0.1 * noise[i]
        rows.append((when.strftime(FORMAT), load))
    return rows


class Meter(Dataset):
    def __init__(self, rows, length=48):
        self.rows = rows
        self.length = length

    def __len__(self):
        return len(self.rows) - self.length - 1

    def calendar(self, text):
        t = dt.datetime.strptime(text, FORMAT)
        a = 2 * math.pi * (t.hour + t.minute / 60) / 24
        b = 2 * math.pi * t.timetuple().tm_yday / 365
        return [math.sin(a), math.cos(a), math.sin(b), math.cos(b), float(t.weekday() >= 5)]

    def __getitem__(self, i):
        part = self.rows[i : i + self.length]
        x = [[value, *self.calendar(text)] for text, value in part]
        return torch.tensor(x), torch.tensor(self.rows[i + self.length][1])


class Net(nn.Module):
    def __init__(self, hidden=160):
        super().__init__()
        self.lstm = nn.LSTM(6, hidden, batch_first=True)
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1]).squeeze(1)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Meter(load_rows()), batch_size=48, shuffle=True)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
