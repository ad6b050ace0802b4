"""Patch-based lesion segmentation in synthetic CT volumes."""
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter
from torch.utils.data import DataLoader, Dataset


@dataclass
class Options:
    cases: int = 6
    shape: tuple = (64, 96, 96)
    patch: int = 24
    batch: int = 4
    per_epoch: int = 160
    epochs: int = 6
    lr: float = 2e-3


def synthesise(folder, opts):
    rng = np.random.default_rng(0)
    for i in range(opts.cases):
        vol = gaussian_filter(rng.normal(0, 1, opts.shape), 3) * 900
        label = np.zeros(opts.shape, dtype=np.uint8)
        zz, yy, xx = np.ogrid[: opts.shape[0], : opts.shape[1], : opts.shape[2]]
        for _ in range(10):
            c = [rng.integers(8, s - 8) for s in opts.shape]
            r = rng.integers(4, 9)
            label[(zz - c[0]) ** 2 + (yy - c[1]) ** 2 + (xx - c[2]) ** 2 < r * r] = 1
        vol = vol + 120 * label + rng.normal(0, 25, opts.shape)
        np.savez_compressed(folder / f"case_{i:02d}.npz", image=vol.astype(np.int16), label=label)


class PatchDataset(Dataset):
    def __init__(self, folder, opts):
        self.files = sorted(folder.glob("case_*.npz"))
        self.opts = opts
        self.rng = np.random.default_rng(1)

    def __len__(self):
        return self.opts.per_epoch

    def load_case(self, path):
        with np.load(path) as z:
            image = z["image"].astype(np.float32)
            label = z["label"]
        image = (image - image.mean()) / image.std()
        return image, label

    def corner(self, label):
        p = self.opts.patch
        return [int(self.rng.integers(0, s - p + 1)) for s in label.shape]

    def __getitem__(self, i):
        image, label = self.load_case(self.files[i % len(self.files)])
        p = self.opts.patch
        z, y, x = self.corner(label)
        img = image[z:z + p, y:y + p, x:x + p]
        lab = label[z:z + p, y:y + p, x:x + p]
        for axis in range(3):
            if self.rng.random() < 0.5:
                img, lab = np.flip(img, axis), np.flip(lab, axis)
        return torch.from_numpy(img[None].copy()), torch.from_numpy(lab.astype(np.int64))


def double_conv(i, o):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, True),
        nn.Conv3d(o, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, True),
    )


class UNet3D(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.e1, self.e2 = double_conv(1, w), double_conv(w, 2 * w)
        self.mid = double_conv(2 * w, 4 * w)
        self.up2, self.up1 = nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), nn.ConvTranspose3d(2 * w, w, 2, 2)
        self.d2, self.d1 = double_conv(4 * w, 2 * w), double_conv(2 * w, w)
        self.out = nn.Conv3d(w, 2, 1)

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(F.max_pool3d(a, 2))
        c = self.mid(F.max_pool3d(b, 2))
        b = self.d2(torch.cat([self.up2(c), b], 1))
        return self.out(self.d1(torch.cat([self.up1(b), a], 1)))


def dice_ce(logits, target):
    p = logits.softmax(1)[:, 1]
    t = (target == 1).float()
    dice = (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
    return F.cross_entropy(logits, target) + 1 - dice, dice.detach()


def train(opts, folder):
    loader = DataLoader(PatchDataset(folder, opts), batch_size=opts.batch, shuffle=True)
    net = UNet3D()
    optimiser = torch.optim.SGD(net.parameters(), lr=opts.lr, momentum=0.99, nesterov=True, weight_decay=3e-5)
    total = opts.epochs * len(loader)
    poly = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: (1 - s / (total + 1)) ** 0.9)
    for epoch in range(opts.epochs):
        dices = []
        for img, lab in loader:
            loss, dice = dice_ce(net(img), lab)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 12)
            optimiser.step()
            poly.step()
            dices.append(dice)
        print(f"epoch {epoch} last loss {loss.item():.4f} soft dice {torch.stack(dices).mean().item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    options = Options()
    with tempfile.TemporaryDirectory() as tmp:
        synthesise(Path(tmp), options)
        train(options, Path(tmp))
