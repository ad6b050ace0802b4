"""Train a ResNet to read handwritten digits on photographs.

python train.py
python train.py --model resnet50 --size 224 --batch-size 256 --synthetic
"""

import argparse
import csv
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from make_data import make
from PIL import Image, ImageEnhance
from resnet import MODELS
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).resolve().parent
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def augment(image, size):
    """A random crop, a small rotation, other brightness, contrast and colour."""
    side = int(image.width * random.uniform(0.85, 1.0))
    left = random.randint(0, image.width - side)
    top = random.randint(0, image.height - side)
    image = image.resize((size, size), Image.BILINEAR, (left, top, left + side, top + side))
    image = image.rotate(random.uniform(-8, 8), Image.BILINEAR)
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = change(image).enhance(random.uniform(0.7, 1.3))
    return image


class Pictures(Dataset):
    def __init__(self, folder, split, size):
        self.folder = Path(folder)
        self.size = size
        self.training = split == "train"
        with open(self.folder / "labels.csv", newline="") as file:
            self.items = [(row[0], int(row[2])) for row in csv.reader(file) if row[1] == split]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        name, label = self.items[index]
        image = Image.open(self.folder / name).convert("RGB")
        if self.training:
            image = augment(image, self.size)
        else:
            image = image.resize((self.size, self.size), Image.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - MEAN) / STD, label


class Synthetic(Dataset):
    """Random pictures, to try a size for which there are no files."""

    def __init__(self, length, size, classes):
        self.length, self.size, self.classes = length, size, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.randn(3, self.size, self.size), index % self.classes


def load_data(args):
    if args.synthetic:
        return Synthetic(args.synthetic, args.size, 10), Synthetic(256, args.size, 10)
    if not (args.data / "labels.csv").exists():
        print(f"making the pictures in {args.data}")
        make(args.data)
    return Pictures(args.data, "train", args.size), Pictures(args.data, "test", args.size)


def evaluate(model, loader, device):
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = model(images.to(device))
            correct += (outputs.argmax(dim=1) == labels.to(device)).sum().item()
    return correct / len(loader.dataset)


def train_epoch(epoch, model, loader, optimizer, scheduler, device):
    model.train()
    running_loss, start = 0.0, time.time()
    for step, (images, labels) in enumerate(loader, start=1):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = F.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running_loss += loss.item()
        if step % 10 == 0:
            speed = 1000 * (time.time() - start) / step
            print(
                f"epoch {epoch} step {step}/{len(loader)} "
                f"loss {running_loss / step:.4f} {speed:.0f} ms/step",
                flush=True,
            )


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=HERE / "data", help="folder of the pictures")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder for checkpoints")
    parser.add_argument("--model", choices=MODELS, default="resnet26-small")
    parser.add_argument("--size", type=int, default=160, help="side of the pictures in pixels")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--synthetic",
        type=int,
        nargs="?",
        const=4096,
        default=0,
        metavar="N",
        help="N random pictures instead of real ones",
    )
    return parser.parse_args()


def main():
    args = parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_data, test_data = load_data(args)
    train_loader = DataLoader(train_data, args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_data, args.batch_size)

    model = MODELS[args.model](classes=10).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(train_loader)
    )

    args.out.mkdir(parents=True, exist_ok=True)
    best = 0.0
    for epoch in range(1, args.epochs + 1):
        train_epoch(epoch, model, train_loader, optimizer, scheduler, device)
        accuracy = evaluate(model, test_loader, device)
        print(f"epoch {epoch} test accuracy {accuracy:.4f}", flush=True)
        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), args.out / "best.pt")
    print(f"best test accuracy {best:.4f}")


if __name__ == "__main__":
    main()
