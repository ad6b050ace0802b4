import time

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler


class Throttle:
    def __init__(self, seconds):
        self.seconds = seconds
        self.last = time.monotonic()

    def tick(self):
        elapsed = time.monotonic() - self.last
        self.last = time.monotonic()
        return elapsed


class Progress:
    def __init__(self, every, pause=0.02):
        self.every, self.pause, self.n = every, pause, 0

    def update(self, loss):
        self.n += 1
        if self.n % self.every == 0:
            print(f"\rbatches {self.n} loss {loss:.4f}", end="")
        time.sleep(self.pause)


X, y = load_breast_cancer(return_X_y=True)
X = torch.tensor(StandardScaler().fit_transform(X), dtype=torch.float32).repeat(8, 1)
y = torch.tensor(y).repeat(8)
X = X + 0.05 * torch.randn_like(X)
train = torch.utils.data.TensorDataset(X, y)
loader = torch.utils.data.DataLoader(train, batch_size=384, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Linear(30, 1024), nn.GELU(), nn.Linear(1024, 768), nn.GELU(), nn.Linear(768, 2)
)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
bar = Progress(every=10)
for epoch in range(9):
    for xb, yb in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        bar.update(loss.item())
print()
