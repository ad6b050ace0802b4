"""Classify a folder of JPEGs with a ResNet-18; each picture is cut and flipped with PIL."""

import argparse
import functools
import os
import random
import tempfile
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def write_picture(folder, size, index):
    rng = np.random.default_rng(index)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    noisy = (smooth + rng.normal(0, 10, smooth.shape)).clip(0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(folder / str(index % CLASSES) / f"{index:05d}.jpg", quality=90)


def picture_folder(count, size):
    """A folder per class, written once."""
    folder = Path(tempfile.gettempdir()) / f"race-jpegs-{count}-{size[0]}"
    if not folder.exists():
        draft = Path(tempfile.mkdtemp(dir=folder.parent))
        for label in range(CLASSES):
            (draft / str(label)).mkdir()
        with Pool(min(16, os.cpu_count() or 1)) as pool:
            pool.map(functools.partial(write_picture, draft, size), range(count))
        draft.rename(folder)
    return folder


class JpegFolder(Dataset):
    def __init__(self, folder, size):
        self.files = sorted(folder.glob("*/*.jpg"))
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image, label = self.picture(index)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (x - MEAN) / STD, label

    def picture(self, index):
        """A random region, scaled; every second one flipped."""
        file = self.files[index]
        image = Image.open(file).convert("RGB")
        width, height = image.size
        side = int(min(width, height) * random.uniform(0.5, 1.0))
        left, top = random.randint(0, width - side), random.randint(0, height - side)
        image = image.crop((left, top, left + side, top + side))
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image, int(file.parent.name)


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + skip)


def resnet18():
    """torchvision's, or the same network where that is not installed."""
    try:
        from torchvision.models import resnet18 as found
    except ImportError:
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, 2, 1))
        for cin, cout, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
            layers += [BasicBlock(cin, cout, stride), BasicBlock(cout, cout, 1)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)]
        return nn.Sequential(*layers)
    return found(num_classes=CLASSES)


def sizes(small):
    """(pictures, their size, the size that is trained on, batch)"""
    return (64, (96, 72), 32, 8) if small else (1024, (640, 480), 224, 64)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="for a CPU")
    return parser.parse_args()


def main():
    args = arguments()
    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count, stored, size, batch = sizes(args.small)
    dataset = JpegFolder(picture_folder(count, stored), size)
    loader = DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=0 if args.small else 4)

    model = resnet18().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    step = 0
    running_loss = 0.0
    while step < args.steps:
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            step += 1
            if step <= 3 or step % 10 == 0:
                print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
