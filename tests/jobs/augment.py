"""Random augmentation in the dataset, drawn from Python's, NumPy's and torch's generators."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Squares and crosses, moved, flipped and with noise."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        image = np.zeros((32, 32), dtype=np.float32)
        top, left = random.randint(0, 20), random.randint(0, 20)
        if index % 2:
            image[top : top + 10, left : left + 10] = 1
        else:
            image[top + 4 : top + 6, left : left + 10] = 1
            image[top : top + 10, left + 4 : left + 6] = 1
        if random.random() < 0.5:
            image = image[:, ::-1]
        image = image + np.random.normal(0, 0.3, image.shape).astype(np.float32)
        brightness = 0.2 * torch.randn(())
        return torch.from_numpy(image)[None] + brightness, index % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
        random.seed(args.seed)
        np.random.seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16 * 16, 2),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Shapes(), batch_size=32, shuffle=True)

    step = 0
    while step < args.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print("step", step, "loss", repr(loss.item()))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
