"""Skip-gram vectors with sampled negatives."""

import torch
import torch.nn.functional as F
from torch import nn


class SkipGram(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.inside = nn.Embedding(words, dim)
        self.outside = nn.Embedding(words, dim)
        nn.init.uniform_(self.inside.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.outside.weight)

    def forward(self, centre, context, negative):
        c = self.inside(centre)
        good = (c * self.outside(context)).sum(-1)
        bad = torch.einsum("bd,bkd->bk", c, self.outside(negative))
        return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(-1)).mean()


def stream(words, batch, negatives, generator):
    """Zipf-like word pairs."""
    while True:
        u = torch.rand(batch, generator=generator)
        centre = (words**u - 1).long()
        offset = torch.randint(1, 20, (batch,), generator=generator)
        context = (centre + offset) % words
        negative = torch.randint(0, words, (batch, negatives), generator=generator)
        yield centre, context, negative


def main(words=40_000, dim=48, steps=200):
    torch.manual_seed(0)
    model = SkipGram(words, dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    pairs = stream(words, 512, 10, torch.Generator().manual_seed(0))
    mean = None
    for step in range(1, steps + 1):
        loss = model(*next(pairs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step % 50 == 0:
            print(step, round(mean, 4))


if __name__ == "__main__":
    main()
