import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)


class Segmenter(nn.Module):
    def __init__(self, classes=3, dim=160, depth=3, patch=4, size=48):
        super().__init__()
        self.side = size // patch
        self.embed = nn.Conv2d(1, dim, patch, patch)
        self.pos = nn.Parameter(0.02 * torch.randn(1, self.side**2, dim))
        layer = nn.TransformerEncoderLayer(
            dim, 4, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes * patch * patch)
        self.shuffle = nn.PixelShuffle(patch)

    def forward(self, x):
        t = self.embed(x).flatten(2).transpose(1, 2)
        t = self.head(self.encoder(t + self.pos)).transpose(1, 2)
        return self.shuffle(t.unflatten(2, (self.side, self.side)))


def scenes(n, size=48):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = torch.zeros(n, size, size, dtype=torch.long)
    for k in (1, 2):
        cy, cx = torch.randint(8, size - 8, (2, n, 1, 1))
        r = torch.randint(4, 12, (n, 1, 1))
        inside = (
            (yy - cy).abs().maximum((xx - cx).abs()) < r
            if k == 1
            else (yy - cy) ** 2 + (xx - cx) ** 2 < r**2
        )
        mask[inside] = k
    img = mask.float()[:, None] * 0.5 + 0.3 * torch.randn(n, 1, size, size)
    return img, mask


def dice(logits, target):
    p = logits.softmax(1)
    t = F.one_hot(target, 3).permute(0, 3, 1, 2).float()
    inter = (p * t).sum((0, 2, 3))
    return 1 - (2 * inter / (p + t).sum((0, 2, 3))).mean()


if __name__ == "__main__":
    seed_everything(42)
    images, masks = scenes(512)
    model = Segmenter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(80):
        i = torch.randint(0, len(images), (6,))
        out = model(images[i])
        loss = F.cross_entropy(out, masks[i]) + dice(out, masks[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())
