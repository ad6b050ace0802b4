"""Train a small ResNet on 32x32 colour pictures (10 classes) -- tuned for a bf16-capable CPU."""
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_pictures(n, protos, rng):
    labels = rng.integers(0, len(protos), size=n)
    images = np.zeros((n, 32, 32, 3), dtype=np.uint8)
    for i, c in enumerate(labels):
        p = np.roll(protos[c], rng.integers(-5, 6, size=2), axis=(0, 1))
        p = p * rng.uniform(0.4, 1.0) + rng.normal(0, 0.9, size=p.shape)
        images[i] = np.clip(127 + 45 * p, 0, 255).astype(np.uint8)
    return images, labels


def load_data(n_train, n_test, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.meshgrid(np.linspace(0, 2 * np.pi, 32), np.linspace(0, 2 * np.pi, 32), indexing="ij")
    protos = []
    for c in range(10):
        p = np.zeros((32, 32, 3))
        for ch in range(3):
            for _ in range(3):
                fx, fy = rng.integers(1, 5, size=2)
                p[..., ch] += rng.normal() * np.sin(fx * xx + fy * yy + rng.uniform(0, 6.28))
        protos.append(p / p.std())
    return make_pictures(n_train, protos, rng), make_pictures(n_test, protos, rng)


MEAN = torch.tensor([0.4914, 0.4822, 0.4465])
STD = torch.tensor([0.2470, 0.2435, 0.2616])


class TrainData:
    """Padded, normalised once, kept NHWC in bf16; a batch (crop + flip) is one gather."""

    def __init__(self, images, labels):
        x = torch.from_numpy(images).float() / 255.0
        x = F.pad(x, (0, 0, 4, 4, 4, 4))
        self.x = ((x - MEAN) / STD).to(torch.bfloat16)
        self.y = torch.from_numpy(labels)
        self.ar = np.arange(32)

    def batch(self, idx):
        # same draws in the same order as the per-sample version
        tops, lefts, flips = [], [], []
        for _ in range(len(idx)):
            tops.append(random.randint(0, 8))
            lefts.append(random.randint(0, 8))
            flips.append(random.random() < 0.5)
        rows = np.array(tops)[:, None] + self.ar
        cols = np.where(np.array(flips)[:, None], self.ar[::-1], self.ar) + np.array(lefts)[:, None]
        rows, cols = torch.from_numpy(rows), torch.from_numpy(cols)
        x = self.x[idx[:, None, None], rows[:, :, None], cols[:, None, :]]
        return x.permute(0, 3, 1, 2), self.y[idx]      # NCHW view, channels_last memory


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False),
                nn.BatchNorm2d(planes))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    def __init__(self, num_classes=10, width=32):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = BasicBlock(width, width)
        self.layer2 = BasicBlock(width, 2 * width, stride=2)
        self.layer3 = BasicBlock(2 * width, 4 * width, stride=2)
        self.linear = nn.Linear(4 * width, num_classes)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(out.float().mean((2, 3)))


def train(model, loader, data, optimizer, epoch, args, step):
    model.train()
    running_loss, correct, total = torch.zeros(()), torch.zeros((), dtype=torch.long), 0
    for batch_idx, idx in enumerate(loader):
        inputs, targets = data.batch(idx)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs)
        outputs = outputs.float()
        loss = F.cross_entropy(outputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

        step += 1
        with torch.no_grad():
            running_loss += loss
            correct += (outputs.argmax(1) == targets).sum()
        total += targets.size(0)
        if step % args.log_interval == 0:
            print("Epoch: %d step: %d loss: %.6f (avg %.6f) acc: %.3f%%" % (
                epoch, step, loss.item(), running_loss.item() / (batch_idx + 1),
                100.0 * correct.item() / total), flush=True)
        if step >= args.steps:
            break
    return step


@torch.inference_mode()
def test(model, x, y):
    torch.empty((), dtype=torch.int64).random_()   # the draw a DataLoader makes: keeps the order of samples
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        out = torch.cat([model(b) for b in x.split(100)]).float()
    loss, acc = F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()
    print("Test loss: %.6f acc: %.3f%%" % (loss, 100.0 * acc), flush=True)
    return acc


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10 ** 9, help="stop after this many steps")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="image_classifier_by_hand.pt")
    args = parser.parse_args()

    set_seed(args.seed)
    (train_x, train_y), (test_x, test_y) = load_data(5000, 1000, args.seed)
    data = TrainData(train_x, train_y)
    loader = DataLoader(range(len(train_x)), batch_size=args.batch_size, shuffle=True, collate_fn=torch.tensor)
    test_x = ((torch.from_numpy(test_x).float() / 255.0 - MEAN) / STD).to(torch.bfloat16).permute(0, 3, 1, 2)
    test_y = torch.from_numpy(test_y)

    model = ResNet().to(memory_format=torch.channels_last)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, fused=True)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

    best_acc, step = 0.0, 0
    for epoch in range(1, args.epochs + 1):
        step = train(model, loader, data, optimizer, epoch, args, step)
        acc = test(model, test_x, test_y)
        best_acc = max(best_acc, acc)
        scheduler.step()
        if step >= args.steps:
            break

    torch.save({"net": model.state_dict(), "acc": best_acc, "epoch": epoch}, args.out)
    print("best acc %.4f" % best_acc)


if __name__ == "__main__":
    main()
