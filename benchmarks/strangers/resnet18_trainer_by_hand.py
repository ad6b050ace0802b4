"""resnet18_trainer.py, by hand: channels_last, bf16, batches painted whole, fused SGD."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


def shuffled(n):
    """The order in which DataLoader(shuffle=True) would come, drawn as it draws it."""
    torch.empty((), dtype=torch.int64).random_()  # its base seed
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


class ColourDigits:
    """Digits at 32x32 in two random colours, shifted a little: a batch at a time."""

    def __init__(self, train):
        digits = load_digits()
        part = slice(0, 1500) if train else slice(1500, None)
        images = torch.tensor(digits.images[part], dtype=torch.float32)[:, None] / 16
        self.images = F.interpolate(images, size=(32, 32), mode="bilinear")[:, 0]
        self.labels = torch.tensor(digits.target[part])
        self.train = train

    def __len__(self):
        return len(self.images)

    def batches(self, batch_size):
        side = torch.arange(32)
        order = shuffled(len(self)) if self.train else torch.arange(len(self))
        for index in order.split(batch_size):
            n = len(index)
            if self.train and n < batch_size:
                return
            front, back = torch.rand(n, 1, 1, 3), torch.rand(n, 1, 1, 3)
            images = self.images[index]
            if self.train:
                down, right = torch.randint(-3, 4, (2, n, 1))
                rows, columns = (side - down) % 32, (side - right) % 32
                images = images[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None]]
            painted = back + images[..., None] * (front - back)
            yield painted.permute(0, 3, 1, 2), self.labels[index]  # channels_last in memory


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False),
                nn.BatchNorm2d(planes),
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu_(out)


class ResNet18(nn.Module):
    def __init__(self, num_classes=10, width=32):
        super().__init__()
        self.in_planes = width
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._make_layer(width, 2, 1)
        self.layer2 = self._make_layer(width * 2, 2, 2)
        self.layer3 = self._make_layer(width * 4, 2, 2)
        self.layer4 = self._make_layer(width * 8, 2, 2)
        self.linear = nn.Linear(width * 8, num_classes)

    def _make_layer(self, planes, blocks, stride):
        layers = []
        for s in [stride] + [1] * (blocks - 1):
            layers.append(BasicBlock(self.in_planes, planes, s))
            self.in_planes = planes
        return nn.Sequential(*layers)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        out = F.avg_pool2d(out, 4).flatten(1)
        return self.linear(out)


class Trainer:
    def __init__(self, model, train_set, test_set, max_steps, batch_size, lr=0.05):
        self.model = model
        self.train_set = train_set
        self.test_set = test_set
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.step = 0
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
        )
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=lr, total_steps=max_steps + 1
        )
        self.history = []

    def train_epoch(self):
        self.model.train()
        for images, labels in self.train_set.batches(self.batch_size):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.model(images)
            loss = self.criterion(logits.float(), labels)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            self.history.append(loss.item())
            print(f"step {self.step} loss {self.history[-1]:.8f}")
            if self.step >= self.max_steps:
                break

    @torch.inference_mode()
    def evaluate(self):
        self.model.eval()
        correct = sum(
            (self.model(x).argmax(1) == y).sum().item() for x, y in self.test_set.batches(100)
        )
        return correct / len(self.test_set)

    def run(self):
        while self.step < self.max_steps:
            self.train_epoch()
            if self.step < self.max_steps:
                print(f"accuracy {self.evaluate():.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=230)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    model = ResNet18().to(memory_format=torch.channels_last)
    Trainer(model, ColourDigits(True), ColourDigits(False), args.steps, args.batch_size).run()


if __name__ == "__main__":
    main()
