import math
import tempfile
from pathlib import Path

import plotly.graph_objects as go
import torch
import torch.nn as nn


def make_series(n, length, horizon):
    t = torch.arange(length + horizon).float()
    freq = torch.rand(n, 1) * 0.3 + 0.05
    phase = torch.rand(n, 1) * 2 * math.pi
    y = (
        torch.sin(freq * t + phase)
        + 0.3 * torch.sin(3 * freq * t)
        + 0.1 * torch.randn(n, t.numel())
    )
    return y[:, :length], y[:, length:]


class Forecaster(nn.Module):
    def __init__(self, length, horizon, width=896):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(length, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, horizon),
        )

    def forward(self, x):
        return self.net(x)


def draw(x, y, p, path, title):
    fig = go.Figure()
    for k in range(6):
        past = list(range(x.shape[1]))
        future = list(range(x.shape[1], x.shape[1] + y.shape[1]))
        fig.add_trace(go.Scatter(x=past, y=x[k].tolist(), name=f"past {k}"))
        fig.add_trace(go.Scatter(x=future, y=y[k].tolist(), name=f"truth {k}"))
        fig.add_trace(go.Scatter(x=future, y=p[k].tolist(), name=f"forecast {k}"))
    fig.update_layout(title=title, height=500)
    path.write_text(fig.to_html(include_plotlyjs=False))


torch.manual_seed(3)
LENGTH, HORIZON = 192, 48
inputs, targets = make_series(4000, LENGTH, HORIZON)
model = Forecaster(LENGTH, HORIZON)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
folder = Path(tempfile.mkdtemp())
for step in range(150):
    pick = torch.randint(0, len(inputs), (128,))
    x, y = inputs[pick], targets[pick]
    p = model(x)
    loss = nn.functional.smooth_l1_loss(p, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    draw(x, y, p.detach(), folder / "forecast.html", f"step {step}")
    if step % 25 == 0:
        print(step, round(loss.item(), 4))
