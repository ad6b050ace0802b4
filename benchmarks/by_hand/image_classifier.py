"""Train a small ResNet on 32x32 colour pictures (10 classes)."""
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import Dataset, DataLoader


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_pictures(n, protos, rng):
    """Every class is a smooth colour pattern, shifted, rescaled and buried in noise."""
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


class PictureDataset(Dataset):
    def __init__(self, images, labels, train=True):
        self.images = images
        self.labels = labels
        self.train = train
        self.mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
        self.std = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        img = torch.from_numpy(self.images[idx]).permute(2, 0, 1).float() / 255.0
        if self.train:
            # random crop
            img = F.pad(img, (4, 4, 4, 4))
            top = random.randint(0, 8)
            left = random.randint(0, 8)
            img = img[:, top:top + 32, left:left + 32]
            # random flip
            if random.random() < 0.5:
                img = torch.flip(img, dims=[2])
        img = (img - self.mean) / self.std
        return img, int(self.labels[idx])


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
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


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
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer1(out)
        out = self.layer2(out)
        out = self.layer3(out)
        out = F.adaptive_avg_pool2d(out, 1)
        out = out.view(out.size(0), -1)
        return self.linear(out)


def train(model, device, loader, criterion, optimizer, epoch, args, step):
    model.train()
    running_loss, correct, total = 0.0, 0, 0
    for batch_idx, (inputs, targets) in enumerate(loader):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()

        running_loss += loss.item()
        _, predicted = outputs.max(1)
        total += targets.size(0)
        correct += predicted.eq(targets).sum().item()
        step += 1
        if step % args.log_interval == 0:
            print("Epoch: %d step: %d loss: %.6f (avg %.6f) acc: %.3f%%" % (
                epoch, step, loss.item(), running_loss / (batch_idx + 1), 100.0 * correct / total), flush=True)
        if step >= args.steps:
            break
    return step


def test(model, device, loader, criterion):
    model.eval()
    test_loss, correct, total = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            test_loss += loss.item() * targets.size(0)
            _, predicted = outputs.max(1)
            total += targets.size(0)
            correct += predicted.eq(targets).sum().item()
    print("Test loss: %.6f acc: %.3f%%" % (test_loss / total, 100.0 * correct / total), flush=True)
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10 ** 9, help="stop after this many steps")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="image_classifier.pt")
    args = parser.parse_args()

    set_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    (train_x, train_y), (test_x, test_y) = load_data(5000, 1000, args.seed)
    trainloader = DataLoader(PictureDataset(train_x, train_y), batch_size=args.batch_size, shuffle=True)
    testloader = DataLoader(PictureDataset(test_x, test_y, train=False), batch_size=100, shuffle=False)

    model = ResNet().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

    best_acc, step = 0.0, 0
    for epoch in range(1, args.epochs + 1):
        step = train(model, device, trainloader, criterion, optimizer, epoch, args, step)
        acc = test(model, device, testloader, criterion)
        best_acc = max(best_acc, acc)
        scheduler.step()
        if step >= args.steps:
            break

    torch.save({"net": model.state_dict(), "acc": best_acc, "epoch": epoch}, args.out)
    print("best acc %.4f" % best_acc)


if __name__ == "__main__":
    main()
