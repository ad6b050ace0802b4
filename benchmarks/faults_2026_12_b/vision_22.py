"""Fit a coordinate network to a stack of video-like frames (implicit representation)."""
import numpy as np
import torch
import torch.nn as nn


def make_frames(count=32, size=160):
    ys, xs = np.mgrid[0:1:size * 1j, 0:1:size * 1j]
    frames = []
    for k in range(count):
        p = 2 * np.pi * k / count
        r = np.sin(9 * xs + p) * np.cos(7 * ys - p)
        g = np.exp(-((xs - 0.5 - 0.3 * np.cos(p)) ** 2 + (ys - 0.5 - 0.3 * np.sin(p)) ** 2) * 40)
        b = xs * ys + 0.2 * np.sin(20 * xs * ys + p)
        frames.append(np.stack([r * 0.5 + 0.5, g, b], -1))
    return np.stack(frames).astype(np.float32)


class PixelPool:
    """All pixels of all frames as (t, y, x) -> colour pairs."""

    def __init__(self, frames, batch):
        t, h, w, _ = frames.shape
        grid = np.stack(np.meshgrid(
            np.linspace(-1, 1, t), np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij"
        ), -1)
        self.coords = torch.from_numpy(grid.reshape(-1, 3).astype(np.float32))
        self.colours = torch.from_numpy(frames.reshape(-1, 3))
        self.batch = batch

    def __len__(self):
        return len(self.coords)

    def draw(self):
        pick = np.random.choice(len(self), self.batch, replace=False)
        pick = torch.from_numpy(pick)
        return self.coords[pick], self.colours[pick]


class Fourier(nn.Module):
    def __init__(self, n, scale):
        super().__init__()
        self.register_buffer("b", torch.randn(3, n) * scale)

    def forward(self, x):
        p = x @ self.b
        return torch.cat([p.sin(), p.cos()], -1)


def network(width=160, depth=4, n=64):
    layers = [Fourier(n, 3.0), nn.Linear(2 * n, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    layers += [nn.Linear(width, 3), nn.Sigmoid()]
    return nn.Sequential(*layers)


def psnr(mse):
    return -10 * float(np.log10(mse))


@torch.no_grad()
def render(net, pool, frame, size):
    n = size * size
    return net(pool.coords[frame * n:(frame + 1) * n]).view(size, size, 3)


def fit(frames, steps=420, batch=2048, lr=2e-3):
    pool = PixelPool(frames, batch)
    net = network()
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.1 ** (1 / steps))
    avg = None
    for step in range(steps):
        xyz, rgb = pool.draw()
        loss = ((net(xyz) - rgb) ** 2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        value = loss.item()
        avg = value if avg is None else 0.95 * avg + 0.05 * value
        if step % 60 == 0:
            print(f"{step:5d} mse {avg:.5f} psnr {psnr(avg):.2f}")
    return net, pool


if __name__ == "__main__":
    np.random.seed(0)
    torch.manual_seed(0)
    video = make_frames()
    model, pixels = fit(video)
    out = render(model, pixels, 3, video.shape[1])
    err = float(((out.numpy() - video[3]) ** 2).mean())
    print(f"frame 3 psnr {psnr(err):.2f}")
