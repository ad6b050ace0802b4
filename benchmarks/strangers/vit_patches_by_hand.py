"""vit_patches.py, by hand: bf16, SDPA, batches cut as bytes and scaled at once, fused AdamW."""

import argparse
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_sample_images


@dataclass
class Config:
    image_size: int = 64
    patch_size: int = 8
    dim: int = 192
    depth: int = 6
    heads: int = 3
    mlp_ratio: int = 4
    dropout: float = 0.0
    num_classes: int = 8
    batch_size: int = 32
    lr: float = 3e-4
    weight_decay: float = 0.05
    warmup: int = 20
    steps: int = 330
    seed: int = 0


def shuffled(n):
    """The order in which DataLoader(shuffle=True) would come, drawn as it draws it."""
    torch.empty((), dtype=torch.int64).random_()  # its base seed
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


class PhotoCrops:
    """Batches of crops, drawn as the plain script draws them."""

    def __init__(self, size, length=4096):
        self.images = [torch.tensor(i.copy()).permute(2, 0, 1) for i in load_sample_images().images]
        self.size = size
        self.length = length
        self.mean = 255 * torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        self.std = 255 * torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def batches(self, batch_size):
        for index in shuffled(self.length).split(batch_size):
            crops, labels = zip(*map(self.crop, index.tolist()), strict=True)
            yield (torch.stack(crops) - self.mean) / self.std, torch.tensor(labels)

    def crop(self, i):
        image = self.images[i % 2]
        _, h, w = image.shape
        top = random.randrange(h - self.size)
        left = random.randrange(w - self.size)
        label = 4 * (i % 2) + 2 * (top > (h - self.size) // 2) + (left > (w - self.size) // 2)
        return image[:, top : top + self.size, left : left + self.size], label


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.dropout = dropout
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0
        )
        return self.proj(attn.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim)
        self.attn = Attention(config.dim, config.heads, config.dropout)
        self.norm2 = nn.LayerNorm(config.dim)
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, config.dim * config.mlp_ratio),
            nn.GELU(),
            nn.Linear(config.dim * config.mlp_ratio, config.dim),
        )

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, config):
        super().__init__()
        n = (config.image_size // config.patch_size) ** 2
        self.patch = nn.Conv2d(3, config.dim, config.patch_size, stride=config.patch_size)
        self.cls = nn.Parameter(torch.zeros(1, 1, config.dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, config.dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(config) for _ in range(config.depth)])
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.num_classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class Trainer:
    def __init__(self, config):
        self.config = config
        self.model = ViT(config)
        self.crops = PhotoCrops(config.image_size)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / config.warmup)
        )
        self.criterion = nn.CrossEntropyLoss()
        self.global_step = 0

    def train_step(self, batch):
        images, labels = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(images)
        loss = self.criterion(logits.float(), labels)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def fit(self):
        self.model.train()
        while True:
            for batch in self.crops.batches(self.config.batch_size):
                loss = self.train_step(batch)
                self.global_step += 1
                print(f"step {self.global_step} loss {loss:.8f}")
                if self.global_step >= self.config.steps:
                    return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--seed", type=int, default=Config.seed)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    Trainer(Config(steps=args.steps, seed=args.seed)).fit()
