import numpy as np
import torch
from scipy import signal
from torch import nn


class Features(nn.Module):
    def __init__(self, bands=32, sr=8000):
        super().__init__()
        self.sr = sr
        edges = np.linspace(0, 129, bands + 1).astype(int)
        bank = np.zeros((bands, 129), dtype=np.float32)
        for i in range(bands):
            bank[i, edges[i] : edges[i + 1] + 1] = 1.0
        self.bank = bank

    def forward(self, wave):
        out = []
        for w in wave.numpy():
            _, _, spec = signal.spectrogram(w, self.sr, nperseg=256, noverlap=128, mode="psd")
            band = np.log(self.bank @ spec + 1e-6)
            out.append((band - band.mean()) / (band.std() + 1e-5))
        return torch.from_numpy(np.stack(out)).float().unsqueeze(1)


class KeywordNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = Features()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * 16, classes),
        )

    def forward(self, wave):
        return self.net(self.features(wave))


def synth(n, sr=8000):
    rng = np.random.default_rng(1)
    t = np.arange(sr // 2) / sr
    y = rng.integers(0, 10, n)
    f = 200 + 150 * y + rng.normal(0, 10, n)
    am = 1 + 0.5 * np.sin(2 * np.pi * (2 + y)[:, None] * t)
    w = am * np.sin(2 * np.pi * f[:, None] * t) + 0.5 * rng.normal(size=(n, len(t)))
    return torch.tensor(w, dtype=torch.float32), torch.tensor(y)


class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.y = synth(1200)
        self.net = KeywordNet()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def batches(self, size, epochs):
        for _ in range(epochs):
            for i in torch.randperm(len(self.x)).split(size):
                yield self.x[i], self.y[i]

    def __call__(self):
        for n, (x, y) in enumerate(self.batches(64, 4)):
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if n % 15 == 0:
                print("batch", n, "loss", loss.item())


if __name__ == "__main__":
    Runner()()
