import math
import random
import torch
import torch.nn as nn


def load(n=60, length=3000):
    rng = random.Random(4)
    out = []
    for k in range(n):
        f = rng.uniform(0.01, 0.2)
        out.append(
            [
                math.sin(f * t) + 0.3 * math.sin(3.1 * f * t) + rng.gauss(0, 0.1)
                for t in range(length)
            ]
        )
    return out


DATA = load()
WIN = 1200


def get_batch(size):
    xs, ys = [], []
    for _ in range(size):
        s = random.randrange(len(DATA))
        t = random.randrange(len(DATA[s]) - WIN - 1)
        xs.append(DATA[s][t : t + WIN])
        ys.append([DATA[s][t + WIN]])
    return torch.tensor(xs).unsqueeze(1), torch.tensor(ys)


class TCN(nn.Module):
    def __init__(self, ch=20):
        super().__init__()
        dil = [1, 2, 4]
        layers = [nn.Conv1d(1, ch, 9, stride=8, padding=4), nn.ReLU()]
        for d in dil:
            layers += [nn.Conv1d(ch, ch, 3, padding=d, dilation=d), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(ch, 1))

    def forward(self, x):
        return self.net(x)


model = TCN()
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
losses = []
for i in range(100):
    x, y = get_batch(256)
    opt.zero_grad()
    loss = nn.functional.huber_loss(model(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if i % 25 == 24:
        print(i + 1, sum(losses[-25:]) / 25)
