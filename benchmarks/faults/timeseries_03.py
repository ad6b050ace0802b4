import argparse
import logging
import os

import torch
from torch import nn

log = logging.getLogger("forecast")


def setup(rank):
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.manual_seed(1000 + rank)


class PatchTransformer(nn.Module):
    def __init__(self, history=512, patch=16, dim=128, depth=3, horizon=64):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, dim)
        self.pos = nn.Parameter(torch.randn(1, history // patch, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(dim * history // patch, horizon)

    def forward(self, x):
        x = x.unfold(1, self.patch, self.patch)
        h = self.encoder(self.embed(x) + self.pos)
        return self.head(h.flatten(1))


def ar_process(n, length):
    noise = torch.randn(n, length)
    out = torch.zeros(n, length)
    for t in range(2, length):
        out[:, t] = 1.6 * out[:, t - 1] - 0.65 * out[:, t - 2] + noise[:, t]
    return out / out.std()


def train(args):
    data = ar_process(64, 2000)
    model = PatchTransformer()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    offsets = torch.arange(512 + 64)
    for step in range(args.steps):
        s = torch.randint(0, len(data), (args.batch, 1))
        t = torch.randint(0, data.shape[1] - 576, (args.batch, 1))
        w = data[s, t + offsets]
        loss = nn.functional.mse_loss(model(w[:, :512]), w[:, 512:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            log.info("step %d loss %.4f", step, loss.item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    setup(args.rank)
    train(args)
