"""A training script that waits for its images, as anyone writes it.

Photographs are decoded, cut and made smaller, one by one.
"""

import argparse
import io
import time

import numpy
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--augment", action="store_true", help="cut each photograph at random")
args = parser.parse_args()


class Photographs(Dataset):
    def __init__(self, count, augment):
        self.count, self.augment = count, augment
        self.files = [self.encoded(array) for array in load_sample_images().images]

    def encoded(self, array):
        file = io.BytesIO()
        Image.fromarray(array).save(file, "JPEG", quality=90)
        return file.getvalue()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index % 2])).convert("RGB")
        left = int(torch.randint(200, ())) if self.augment else index % 200
        image = image.crop((left, index % 17, left + 400, 400 + index % 17)).resize((64, 64))
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1)
        return pixels.float() / 255 - 0.5, index % 2


def layers(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(
        *layers(3, 16), *layers(16, 32), *layers(32, 64), nn.Flatten(), nn.Linear(64 * 64, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Photographs(args.batch * args.steps, args.augment)
    loader = DataLoader(data, args.batch, shuffle=True, num_workers=args.workers)
    ends = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ends.append(time.perf_counter())
        print("step", len(ends), "loss", loss.item())
    skipped = args.steps // 3
    print("STEP_MS", 1000 * (ends[-1] - ends[skipped]) / (len(ends) - 1 - skipped))
