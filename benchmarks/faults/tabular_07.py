import pandas as pd
import torch
import torch.nn as nn
from sklearn.datasets import load_iris


class History:
    def __init__(self):
        self.frame = pd.DataFrame(columns=["step", "split", "name", "value"])

    def log(self, step, values):
        rows = pd.DataFrame(
            [{"step": step, "split": "train", "name": k, "value": v} for k, v in values.items()]
        )
        self.frame = rows if self.frame.empty else pd.concat([self.frame, rows], ignore_index=True)
        table = self.frame.pivot_table(index="step", columns="name", values="value")
        self.smooth = table.ewm(span=20).mean().iloc[-1]
        self.best = self.frame.groupby("name")["value"].agg(["min", "max", "mean"])


iris = load_iris()
x = torch.tensor(iris.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor(iris.target)
x, y = x.repeat(20, 1), y.repeat(20)
x = torch.cat([x, x**2, x.roll(1, 1) * x], 1) + 0.1 * torch.randn(len(x), 12)

torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(12, 768),
    nn.LeakyReLU(),
    nn.Linear(768, 768),
    nn.LeakyReLU(),
    nn.Linear(768, 512),
    nn.LeakyReLU(),
    nn.Linear(512, 3),
)
sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
history = History()
step = 0
for epoch in range(5):
    for idx in torch.randperm(len(x)).split(200):
        out = net(x[idx])
        loss = nn.functional.cross_entropy(out, y[idx])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        acc = (out.argmax(1) == y[idx]).float().mean().item()
        history.log(
            step,
            {
                "loss": loss.item(),
                "acc": acc,
                "lr": sgd.param_groups[0]["lr"],
                "margin": out.std().item(),
            },
        )
        step += 1
    print(epoch, loss.item(), acc)
