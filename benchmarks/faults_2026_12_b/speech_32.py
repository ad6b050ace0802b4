# %% [markdown]
# # Pitch contour regression
# Frame-level f0 from filterbank features of generated voices.

# %%
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.signal import get_window

np.random.seed(12)
torch.manual_seed(12)

RATE = 8000
FRAME = 400
HOP = 160
N_BANDS = 48
SECONDS = 1.0

# %%
def voice(rng):
    n = int(RATE * SECONDS)
    t = np.arange(n) / RATE
    f0 = rng.uniform(90, 260) * (1 + 0.15 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * t + rng.uniform(0, 6)))
    phase = 2 * np.pi * np.cumsum(f0) / RATE
    wave = sum(np.sin(k * phase) / k for k in range(1, 6))
    return wave + 0.05 * rng.standard_normal(n), f0


def band_matrix():
    edges = np.geomspace(60, RATE / 2, N_BANDS + 2)
    freqs = np.fft.rfftfreq(FRAME, 1 / RATE)
    up = (freqs[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[None, 2:] - freqs[:, None]) / (edges[2:] - edges[1:-1])
    return np.clip(np.minimum(up, down), 0, None)


def features(wave, bands, window):
    frames = np.lib.stride_tricks.sliding_window_view(wave, FRAME)[::HOP]
    power = np.abs(np.fft.rfft(frames * window, axis=-1)) ** 2
    return np.log(power @ bands + 1e-6)


# %%
rng = np.random.default_rng(12)
bands, window = band_matrix(), get_window("hann", FRAME)
feats, pitch = [], []
for _ in range(600):
    wave, f0 = voice(rng)
    x = features(wave, bands, window)
    feats.append(x)
    pitch.append(np.log2(f0[FRAME // 2::HOP][:len(x)] / 100.0))
feats, pitch = np.stack(feats), np.stack(pitch)
feats = (feats - feats.mean((0, 1))) / (feats.std((0, 1)) + 1e-5)
inputs = torch.from_numpy(feats)
targets = torch.from_numpy(pitch)
print("inputs", tuple(inputs.shape), "targets", tuple(targets.shape))

# %%
class Block(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x):
        a, b = self.conv(self.norm(x)).chunk(2, dim=1)
        return x + a * torch.sigmoid(b)


class PitchNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp = nn.Linear(N_BANDS, width)
        self.blocks = nn.Sequential(*[Block(width, 2 ** i) for i in range(4)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x).transpose(1, 2)
        h = self.blocks(h).transpose(1, 2)
        return self.out(h).squeeze(-1)


model = PitchNet().double()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
STEPS, BATCH = 300, 32
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)

# %%
train_n = 540
losses = []
for step in range(1, STEPS + 1):
    idx = torch.randint(0, train_n, (BATCH,))
    loss = F.smooth_l1_loss(model(inputs[idx]), targets[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    losses.append(loss.item())
    if step % 25 == 0:
        print(f"step {step:3d} loss {np.mean(losses[-25:]):.5f}")

# %%
model.eval()
with torch.no_grad():
    cents = 1200 * (model(inputs[train_n:]) - targets[train_n:]).abs().mean().item()
print(f"held-out error {cents:.1f} cents")
