import itertools

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_images
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    """Patches of the two photographs of scikit-learn, label: which one."""

    def __init__(self, number=25_000, size=16):
        photos = [np.asarray(p, dtype=np.float32) / 255 for p in load_sample_images().images]
        self.photos = [torch.from_numpy(p).permute(2, 0, 1).contiguous() for p in photos]
        rng = np.random.default_rng(0)
        self.size = size
        self.which = rng.integers(0, 2, number).tolist()
        self.top = rng.integers(0, 427 - size, number).tolist()
        self.left = rng.integers(0, 640 - size, number).tolist()

    def __len__(self):
        return len(self.which)

    def __getitem__(self, i):
        w, t, l, s = self.which[i], self.top[i], self.left[i], self.size
        return self.photos[w][:, t : t + s, l : l + s], w


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(64, 64, 3, padding=1)
        self.fc = nn.Linear(64 * 16, 2)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        x = F.relu(self.c3(x))
        return self.fc(x.flatten(1))


def gather(stream, n):
    xs, ys = [], []
    for x, y in itertools.islice(stream, n):
        xs.append(x)
        ys.append(y)
    return torch.cat(xs), torch.cat(ys)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Patches(), shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    stream = iter(loader)
    for step in range(65):
        x, y = gather(stream, 384)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print("step", step, "loss", loss.item())


if __name__ == "__main__":
    main()
