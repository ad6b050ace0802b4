import numpy as np
import torch
import torch.nn as nn
from scipy import ndimage
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class RandomRotate:
    def __init__(self, degrees, rng):
        self.degrees, self.rng = degrees, rng

    def __call__(self, img):
        return ndimage.rotate(
            img, self.rng.uniform(-self.degrees, self.degrees), reshape=False, order=1
        )


class ElasticNoise:
    def __init__(self, alpha, sigma, rng):
        self.alpha, self.sigma, self.rng = alpha, sigma, rng

    def __call__(self, img):
        dx, dy = (
            ndimage.gaussian_filter(self.rng.uniform(-1, 1, img.shape), self.sigma) * self.alpha
            for _ in "xy"
        )
        y, x = np.mgrid[: img.shape[0], : img.shape[1]]
        return ndimage.map_coordinates(img, [y + dy, x + dx], order=1)


class Compose:
    def __init__(self, *fs):
        self.fs = fs

    def __call__(self, img):
        for f in self.fs:
            img = f(img)
        return img


class Digits(Dataset):
    def __init__(self, images, targets, transform=None):
        self.images = np.kron(images, np.ones((1, 3, 3))).astype(np.float32) / 16
        self.targets, self.transform = targets, transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        img = self.images[index]
        if self.transform:
            img = self.transform(img)
        return torch.from_numpy(np.ascontiguousarray(img, dtype=np.float32))[None], int(
            self.targets[index]
        )


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    d = load_digits()
    tf = Compose(RandomRotate(20, rng), ElasticNoise(6, 3, rng))
    loader = DataLoader(Digits(d.images, d.target, tf), batch_size=64, shuffle=True, drop_last=True)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 36, 10),
    )
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    lossf = nn.CrossEntropyLoss()
    for epoch in range(3):
        correct = n = 0
        for x, y in loader:
            out = net(x)
            loss = lossf(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (out.argmax(1) == y).sum().item()
            n += len(y)
        print(f"epoch {epoch}: {correct / n:.3f}")


if __name__ == "__main__":
    main()
