import math
import queue
import threading
import time

import torch
import torch.nn as nn


class Prefetcher:
    """Makes the batches in a thread, one ahead."""

    def __init__(self, make, steps):
        self.box = queue.Queue(maxsize=1)
        self.make, self.steps = make, steps
        self.wanted = threading.Semaphore(0)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        for _ in range(self.steps):
            self.wanted.acquire()
            self.box.put(self.make())

    def __iter__(self):
        for _ in range(self.steps):
            self.wanted.release()
            while True:
                try:
                    batch = self.box.get_nowait()
                    break
                except queue.Empty:
                    time.sleep(0.025)
            yield batch


def tones(batch=32, n=2048, rate=8000):
    t = torch.arange(n) / rate
    note = torch.randint(0, 24, (batch,))
    f = 110 * 2 ** (note / 12)
    wave = torch.sin(2 * math.pi * f[:, None] * t) + 0.2 * torch.randn(batch, n)
    return wave, note


class SpectralNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.body = nn.Sequential(
            nn.Conv1d(129, 128, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(128, 128, 5, padding=2),
            nn.ReLU(),
        )
        self.out = nn.Linear(128, 24)

    def forward(self, wave):
        s = torch.stft(wave, 256, 64, window=self.window, return_complex=True).abs()
        return self.out(self.body(torch.log1p(s)).mean(2))


def main():
    torch.manual_seed(0)
    net = SpectralNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    right = 0
    for step, (wave, note) in enumerate(Prefetcher(tones, 150)):
        out = net(wave)
        loss = nn.functional.cross_entropy(out, note)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            right = (out.argmax(1) == note).float().mean().item()
            print(f"{step} loss {loss.item():.3f} accuracy {right:.2f}")


if __name__ == "__main__":
    main()
