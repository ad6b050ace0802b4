import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Schedule(nn.Module):
    def __init__(self, steps=200):
        super().__init__()
        beta = torch.linspace(1e-4, 0.04, steps)
        keep = (1 - beta).cumprod(0)
        self.register_buffer("signal", keep.sqrt())
        self.register_buffer("noise", (1 - keep).sqrt())
        self.steps = steps

    def forward(self, x, t, e):
        return self.signal[t, None, None, None] * x + self.noise[t, None, None, None] * e


class Denoiser(nn.Module):
    def __init__(self, c=40, steps=200):
        super().__init__()
        self.time = nn.Embedding(steps, c)
        self.inp = nn.Conv2d(1, c, 3, padding=1)
        self.down = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.out = nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x, t):
        a = F.silu(self.inp(x) + self.time(t)[:, :, None, None])
        b = F.silu(self.down(a))
        b = b + F.silu(self.mid(b))
        return self.out(torch.cat([a, F.silu(self.up(b))], 1))


class Average:
    """Moving average of the weights, updated with one fused call."""

    def __init__(self, model, rate=0.995):
        self.source = list(model.parameters())
        self.shadow = [p.detach().clone() for p in self.source]
        self.rate = rate

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.shadow, self.source, 1 - self.rate)


def main():
    torch.manual_seed(0)
    x = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    schedule, model = Schedule(), Denoiser()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(200):
        clean = x[torch.randint(0, len(x), (96,))]
        t = torch.randint(0, schedule.steps, (96,))
        e = torch.randn_like(clean)
        loss = F.mse_loss(model(schedule(clean, t, e), t), e)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update()
        if step % 50 == 0:
            print("step", step, "loss", loss.item())


if __name__ == "__main__":
    main()
