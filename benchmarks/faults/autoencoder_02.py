import argparse
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter


class SparseAE(nn.Module):
    def __init__(self, d=64, hidden=(512, 384, 64)):
        super().__init__()
        dims = [d, *hidden]
        enc, dec = [], []
        for a, b in zip(dims, dims[1:]):
            enc += [nn.Linear(a, b), nn.GELU()]
            dec = [nn.Linear(b, a), nn.GELU(), *dec]
        self.encoder, self.decoder = nn.Sequential(*enc), nn.Sequential(*dec[:-1])

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code), code


def train(args, writer):
    torch.manual_seed(args.seed)
    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(x), batch_size=args.batch_size, shuffle=True)
    model = SparseAE()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    global_step = 0
    for epoch in range(args.epochs):
        for (xb,) in loader:
            rec, code = model(xb)
            loss = nn.functional.mse_loss(rec, xb) + args.l1 * code.abs().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            writer.add_scalar("loss", loss.item(), global_step)
            for name, p in model.named_parameters():
                writer.add_histogram(f"weight/{name}", p, global_step)
                writer.add_histogram(f"grad/{name}", p.grad, global_step)
            global_step += 1
        print(f"epoch {epoch} loss {loss.item():.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--l1", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as logdir:
        writer = SummaryWriter(logdir)
        train(args, writer)
        writer.close()
