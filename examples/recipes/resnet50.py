"""Train ResNet-50: https://arxiv.org/abs/1512.03385

python resnet50.py --data imagenet    # with train/<class>/*.jpg and val/<class>/*.jpg
python resnet50.py --small            # digits on photographs, on two CPU cores: 93 % are read

Stopped at any time, the same command goes on where it was.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import data
import torch
import torch.nn.functional as F
from torch import nn

import flatout


@dataclass(frozen=True)
class Config:
    depths: tuple = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    size: int = 224  # side of the pictures, in pixels
    augment: str = "auto"  # random crops, mirrored or not
    batch: int = 1024
    steps: int = 112_500  # 90 epochs of ImageNet
    rate: float = 2e-3
    ema: float = 0.9999


SMALL = Config((2, 2, 2, 2), 32, 10, 96, "none", batch=32, steps=440, ema=0.98)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        # No bias: the norm that follows would take it away again.
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        # At first each block hands on what it gets: a deep network then bears a high rate.
        nn.init.zeros_(self.bn3.weight)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks, inputs = [], width
        for stage, depth in enumerate(config.depths):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(inputs, width * 2**stage, stride))
                inputs = 4 * width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, config.classes)

    def forward(self, images):
        """Logits [N, classes] of images [N, 3, size, size]."""
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))


def loss_fn(logits, labels):
    # Smoothed labels: the network stops pushing logits apart that are right already.
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def make_optimizer(model, config):
    # Decay is for what multiplies; on norms and biases it only slows learning.
    multiply = [p for p in model.parameters() if p.dim() > 1]
    others = {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}
    groups = [{"params": multiply}, others]
    optimizer = torch.optim.AdamW(groups, config.rate, weight_decay=0.05)
    # Warm-up in the first twentieth, then a cosine down to nothing.
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.rate, total_steps=config.steps, pct_start=0.05, cycle_momentum=False
    )
    return optimizer, scheduler


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = sum((model(images).argmax(1) == labels).sum() for images, labels in loader)
    return hits.item() / sum(len(labels) for _, labels in loader)


def train(config, folder, out):
    torch.manual_seed(0)
    folder = Path(folder)
    # Pictures are decoded, cropped and put on the device ahead of the model.
    loader = flatout.image_loader(
        folder / "train", config.batch, size=config.size, augment=config.augment, color_jitter=0.3
    )
    test = flatout.image_loader(folder / "val", config.batch, size=config.size, train=False)
    # The model goes to the device before the optimizer is built, which keeps its parameters.
    model = ResNet(config).to(flatout.device())
    optimizer, scheduler = make_optimizer(model, config)
    # Precision, memory layout, compilation and CUDA graph are chosen for this machine.
    step = flatout.train_step(model, loss_fn, optimizer, scheduler=scheduler, ema=config.ema)
    # Stopped (by SIGTERM too) and started again, it goes on with the very batch that is next.
    with flatout.Checkpoint(out, every="10m", step=step, loader=loader) as checkpoint:
        checkpoint.resume()
        while checkpoint.steps < config.steps:
            for batch in loader:  # each pass is one epoch
                loss = step(batch)
                checkpoint.after_step()
                if checkpoint.steps % 50 == 0:  # .item() waits for the device: not in every step
                    print(f"step {checkpoint.steps} loss {loss.item():.4f}", flush=True)
                if checkpoint.steps == config.steps:
                    break
        checkpoint.save()
    return accuracy(step.ema, test)  # the average of the last weights is better than the last


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a size for two CPU cores")
    parser.add_argument("--data", type=Path, help="folder with train/ and val/")
    parser.add_argument("--out", type=Path, default=Path("resnet50"), help="for checkpoints")
    args = parser.parse_args()
    folder = args.data or data.pictures("pictures")
    found = train(SMALL if args.small else Config(), folder, args.out)
    print(f"validation accuracy {found:.4f}")
