import random
import tempfile
import threading
import time

import torch
from torch import nn


class AsyncLog:
    def __init__(self):
        self.lock = threading.Lock()
        self.rows = []
        self.file = tempfile.NamedTemporaryFile("w", suffix=".log")
        self.alive = True
        self.thread = threading.Thread(target=self.drain, daemon=True)
        self.thread.start()

    def drain(self):
        while self.alive:
            with self.lock:
                rows, self.rows = self.rows, []
                for name, value in rows:
                    self.file.write(f"{time.time():.3f} {name} {value}\n")
                self.file.flush()
                time.sleep(0.04)
            time.sleep(0.002)

    def add(self, name, value):
        with self.lock:
            self.rows.append((name, value))

    def close(self):
        self.alive = False
        self.thread.join()
        self.file.close()


def friedman(n):
    x = torch.rand(n, 40)
    y = (
        10 * torch.sin(3.14159 * x[:, 0] * x[:, 1])
        + 20 * (x[:, 2] - 0.5) ** 2
        + 10 * x[:, 3]
        + 5 * x[:, 4]
    )
    return x, y + torch.randn(n)


def main():
    torch.manual_seed(0)
    random.seed(0)
    x, y = friedman(16384)
    net = nn.Sequential(
        nn.Linear(40, 768),
        nn.ReLU(),
        nn.Linear(768, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 1),
    )
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    log = AsyncLog()
    for step in range(110):
        i = torch.randint(0, len(x), (256,))
        loss = nn.functional.mse_loss(net(x[i]).squeeze(1), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.add("loss", loss.item())
        if step % 30 == 0:
            print(step, loss.item())
    log.close()


if __name__ == "__main__":
    main()
