"""Gatys style transfer between the two sample photographs of scikit-learn."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_image

STYLE_AT = (0, 2, 4, 6)
CONTENT_AT = 5


def load(name, size):
    img = Image.fromarray(load_sample_image(name)).resize((size, size), Image.LANCZOS)
    x = torch.from_numpy(np.asarray(img, dtype=np.float32) / 255.0)
    return x.permute(2, 0, 1)[None].contiguous()


class Features(nn.Module):
    """VGG-shaped extractor; orthogonal random filters do well enough for textures."""

    def __init__(self, widths=(24, 24, 48, 48, 64, 64, 64)):
        super().__init__()
        self.convs = nn.ModuleList()
        c = 3
        for w in widths:
            conv = nn.Conv2d(c, w, 3, padding=1, padding_mode="reflect")
            nn.init.orthogonal_(conv.weight, gain=2 ** 0.5)
            nn.init.zeros_(conv.bias)
            self.convs.append(conv)
            c = w
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, x):
        x = (x - self.mean) / self.std
        out = []
        for i, conv in enumerate(self.convs):
            x = F.relu(conv(x))
            out.append(x)
            if i in (1, 3):
                x = F.avg_pool2d(x, 2)
        return out


def gram(f):
    b, c, h, w = f.shape
    f = f.reshape(b, c, h * w)
    return f @ f.transpose(1, 2) / (c * h * w)


class TransferLoss(nn.Module):
    def __init__(self, content, style, style_weight=1e4, tv_weight=1e-2):
        super().__init__()
        self.features = Features().eval().requires_grad_(False)
        self.register_buffer("content", content)
        self.register_buffer("style", style)
        self.style_weight = style_weight
        self.tv_weight = tv_weight

    def references(self):
        with torch.no_grad():
            content = self.features(self.content)[CONTENT_AT]
            style = self.features(self.style)
            grams = [gram(style[i]) for i in STYLE_AT]
        return content, grams

    def forward(self, image):
        content, grams = self.references()
        feats = self.features(image)
        loss_c = F.mse_loss(feats[CONTENT_AT], content)
        loss_s = sum(F.mse_loss(gram(feats[i]), g) for i, g in zip(STYLE_AT, grams))
        tv = (image[..., 1:] - image[..., :-1]).abs().mean() + (image[..., 1:, :] - image[..., :-1, :]).abs().mean()
        return loss_c + self.style_weight * loss_s + self.tv_weight * tv, loss_c, loss_s


def optimise(criterion, image, steps, lr):
    image = image.clone().requires_grad_(True)
    opt = torch.optim.Adam([image], lr=lr)
    sched = torch.optim.lr_scheduler.StepLR(opt, steps // 2, 0.5)
    for step in range(steps):
        opt.zero_grad()
        loss, c, s = criterion(image)
        loss.backward()
        opt.step()
        sched.step()
        with torch.no_grad():
            image.clamp_(0, 1)
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step:4d} total {loss.item():.4f} content {c.item():.4f} style {s.item():.6f}")
    return image.detach()


def save(image, path):
    arr = (image[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    Image.fromarray(arr).save(path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=128)
    ap.add_argument("--steps", type=int, default=220)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--out", default="/tmp/stylised.png")
    args = ap.parse_args()
    torch.manual_seed(4)
    content, style = load("china.jpg", args.size), load("flower.jpg", args.size)
    criterion = TransferLoss(content, style)
    result = optimise(criterion, content, args.steps, args.lr)
    save(result, args.out)
    print("wrote", args.out)


if __name__ == "__main__":
    main()
