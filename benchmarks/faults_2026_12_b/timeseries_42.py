"""Sensor forecasting with a GRU; windows are cut and augmented in a background thread."""
import collections
import threading
import time

import numpy as np
import torch
import torch.nn as nn

CONTEXT, HORIZON, CHANNELS = 72, 12, 8
BATCH, STEPS = 64, 400


def sensor_log(n, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(n)[:, None]
    period = rng.uniform(20, 200, CHANNELS)
    x = np.sin(2 * np.pi * t / period + rng.uniform(0, 6, CHANNELS))
    x = x + 0.3 * np.sin(2 * np.pi * t / 24) + 0.1 * rng.normal(size=(n, CHANNELS))
    return x.astype(np.float32)


class WindowCutter:
    def __init__(self, log, seed):
        self.view = np.lib.stride_tricks.sliding_window_view(log, CONTEXT + HORIZON, axis=0)
        self.rng = np.random.default_rng(seed)

    def cut(self):
        starts = self.rng.integers(0, len(self.view), BATCH)
        w = self.view[starts].transpose(0, 2, 1).copy()
        w[:, :CONTEXT] += self.rng.normal(0, 0.02, (BATCH, CONTEXT, CHANNELS)).astype(np.float32)
        return torch.from_numpy(w[:, :CONTEXT]), torch.from_numpy(w[:, CONTEXT:])


class Feeder:
    """Keeps up to `depth` batches ready for the training loop."""

    def __init__(self, cutter, total, depth=1):
        self.cutter, self.total, self.depth = cutter, total, depth
        self.ready = collections.deque()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        made = 0
        while made < self.total:
            if len(self.ready) >= self.depth:
                time.sleep(0.05)
                continue
            batch = self.cutter.cut()
            with self.lock:
                self.ready.append(batch)
            made += 1

    def __iter__(self):
        for _ in range(self.total):
            while not self.ready:
                time.sleep(0.005)
            with self.lock:
                batch = self.ready.popleft()
            yield batch


class GRUForecaster(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.gru = nn.GRU(CHANNELS, hidden, batch_first=True)
        self.head = nn.Linear(hidden, HORIZON * CHANNELS)

    def forward(self, x):
        _, h = self.gru(x)
        return self.head(h[-1]).view(-1, HORIZON, CHANNELS)


def main():
    torch.manual_seed(8)
    log = sensor_log(50_000, 8)
    feeder = Feeder(WindowCutter(log, 8), STEPS)
    model = GRUForecaster()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.SmoothL1Loss()
    began = time.perf_counter()
    running = 0.0
    for step, (x, y) in enumerate(feeder, 1):
        opt.zero_grad(set_to_none=True)
        loss = loss_fn(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        running += loss.item()
        if step % 50 == 0:
            rate = step / (time.perf_counter() - began)
            print(f"step {step} loss {running / 50:.4f} {rate:.1f} steps/s")
            running = 0.0


if __name__ == "__main__":
    main()
