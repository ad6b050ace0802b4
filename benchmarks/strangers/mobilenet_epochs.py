"""MobileNetV2-like net; epochs with validation, best and last checkpoint written to ./out."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, random_split


class Textures(Dataset):
    """Tiles of two photographs; the label tells photograph and how the tile was turned."""

    def __init__(self, n=960, size=64):
        rng = random.Random(1)
        photos = [Image.fromarray(image) for image in load_sample_images().images]
        self.tiles = []
        for i in range(n):
            photo = photos[i % 2]
            x, y = rng.randrange(photo.width - size), rng.randrange(photo.height - size)
            turn = rng.randrange(4)
            tile = photo.crop((x, y, x + size, y + size)).rotate(90 * turn)
            self.tiles.append((np.asarray(tile), (i % 2) * 4 + turn))

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, i):
        tile, label = self.tiles[i]
        x = torch.from_numpy(tile.copy()).permute(2, 0, 1).float().div(255)
        return (x - 0.5) / 0.25, label


class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand):
        super().__init__()
        hidden = inp * expand
        self.use_res = stride == 1 and inp == oup
        self.conv = nn.Sequential(
            nn.Conv2d(inp, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, oup, 1, bias=False),
            nn.BatchNorm2d(oup),
        )

    def forward(self, x):
        return x + self.conv(x) if self.use_res else self.conv(x)


def mobilenet(num_classes):
    layers = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)]
    inp = 16
    for expand, oup, n, stride in [(2, 16, 1, 1), (4, 24, 2, 2), (4, 40, 2, 2), (4, 64, 2, 1)]:
        for i in range(n):
            layers.append(InvertedResidual(inp, oup, stride if i == 0 else 1, expand))
            inp = oup
    return nn.Sequential(
        *layers,
        nn.Conv2d(inp, 256, 1, bias=False),
        nn.BatchNorm2d(256),
        nn.ReLU6(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(256, num_classes),
    )


@torch.no_grad()
def validate(model, loader, criterion):
    model.eval()
    loss, correct, n = 0.0, 0, 0
    for x, y in loader:
        out = model(x)
        loss += criterion(out, y).item() * len(y)
        correct += (out.argmax(1) == y).sum().item()
        n += len(y)
    return loss / n, correct / n


def main(args):
    data = Textures()
    train_data, val_data = random_split(data, [800, 160])
    train_loader = DataLoader(train_data, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_data, batch_size=32)
    model = mobilenet(8)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-5)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.94)
    out = Path("out")
    out.mkdir(exist_ok=True)

    best, step = 0.0, 0
    for epoch in range(10**9):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.8f}")
            if step >= args.steps:
                break
        scheduler.step()
        val_loss, val_acc = validate(model, val_loader, criterion)
        print(f"epoch {epoch} val_loss {val_loss:.4f} val_acc {val_acc:.4f}")
        state = {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        }
        torch.save(state, out / "mobilenet_last.pt")
        if val_acc > best:
            best = val_acc
            torch.save(state, out / "mobilenet_best.pt")
        if step >= args.steps:
            break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    main(args)
