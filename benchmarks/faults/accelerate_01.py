import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, items=4000, dim=256, out=512):
        super().__init__()
        self.emb = nn.Embedding(items, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, out), nn.ReLU(), nn.Linear(out, out), nn.ReLU(), nn.Linear(out, items)
        )

    def forward(self, basket):
        return self.mlp(self.emb(basket).mean(1))


def baskets(n=3000, items=4000, size=12):
    g = torch.Generator().manual_seed(1)
    centre = torch.randint(0, items, (n, 1), generator=g)
    x = (centre + torch.randint(-20, 20, (n, size + 1), generator=g)) % items
    return TensorDataset(x[:, :-1], x[:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--batch", type=int, default=48)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(baskets(), batch_size=args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    held = {}
    count = 0
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss / args.accumulate)
            for name, p in model.named_parameters():
                g = p.grad.detach().clone()
                held[name] = held[name] + g if name in held else g
            optimizer.zero_grad()
            count += 1
            if count % args.accumulate == 0:
                for name, p in model.named_parameters():
                    p.grad = held[name].clone()
                optimizer.step()
                optimizer.zero_grad()
                held = {}
        accelerator.print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
