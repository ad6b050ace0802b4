import torch
import torch.nn as nn


class Forecaster(nn.Module):
    def __init__(self, c=32, horizon=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, c, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(c, c, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv1d(c, c, 3, padding=4, dilation=4),
            nn.ReLU(),
            nn.AvgPool1d(8),
            nn.Flatten(),
            nn.Linear(c * 18, horizon),
        )

    def forward(self, x):
        return self.net(x.unsqueeze(1))


def windows(n=80, length=1000, width=156):
    t = torch.arange(length)
    s = torch.sin(t * (torch.rand(n, 1) * 0.2 + 0.02)) + 0.2 * torch.randn(n, length)
    return s.unfold(1, width, 4).reshape(-1, width)


def stream(data, size):
    while True:
        order = torch.randperm(len(data))
        for i in range(0, len(data) - size + 1, size):
            chunk = data[order[i : i + size]]
            yield chunk[:, :144], chunk[:, 144:]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = stream(windows(), 192)
    for step in range(48):
        x, y = next(batches)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 12 == 0:
            print(step, loss.item())
