"""autoencoder_jpeg.py, by hand: each JPEG decoded and shrunk once, channels_last, fused Adam."""

import argparse
import io
import random

import numpy as np
import torch
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images
from torch import nn
from torch.utils.data import Dataset

SIZE = 48


def make_jpegs(count):
    """Crops of the two sample photographs as JPEG bytes, as if read from a folder."""
    rng = np.random.RandomState(0)
    photos = [Image.fromarray(image) for image in load_sample_images().images]
    files = []
    for i in range(count):
        photo = photos[i % 2]
        left = rng.randint(photo.width - 256)
        top = rng.randint(photo.height - 256)
        buffer = io.BytesIO()
        photo.crop((left, top, left + 256, top + 256)).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


class Crops(Dataset):
    def __init__(self, files):
        self.files = files
        self.small = {}

    def __len__(self):
        return len(self.files)

    def decoded(self, idx):
        if idx not in self.small:
            image = Image.open(io.BytesIO(self.files[idx])).convert("RGB")
            self.small[idx] = image.resize((64, 64), Image.BILINEAR)
        return self.small[idx]

    def __getitem__(self, idx):
        image = self.decoded(idx)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        image = image.rotate(random.uniform(-10, 10), resample=Image.BILINEAR)
        image = ImageEnhance.Brightness(image).enhance(random.uniform(0.8, 1.2))
        image = ImageEnhance.Contrast(image).enhance(random.uniform(0.8, 1.2))
        x, y = random.randint(0, 64 - SIZE), random.randint(0, 64 - SIZE)
        image = image.crop((x, y, x + SIZE, y + SIZE))
        return np.asarray(image)


def shuffled(n):
    """The order in which DataLoader(shuffle=True) would come, drawn as it draws it."""
    torch.empty((), dtype=torch.int64).random_()  # its base seed
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def batches(crops, batch_size):
    """In random order, the last that is not full left out; bytes until the whole is a batch."""
    for index in shuffled(len(crops)).split(batch_size):
        if len(index) == batch_size:
            pixels = torch.from_numpy(np.stack([crops[i] for i in index.tolist()]))
            yield pixels.permute(0, 3, 1, 2).float().div_(255)  # channels_last as it is


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 6 * 6, 128),
        )
        self.decoder = nn.Sequential(
            nn.Linear(128, 64 * 6 * 6),
            nn.Unflatten(1, (64, 6, 6)),
            nn.ConvTranspose2d(64, 64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=750)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.1)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    crops = Crops(make_jpegs(800))
    model = AutoEncoder().to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for clean in batches(crops, 64):
            noisy = clean + args.noise * torch.randn_like(clean)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(noisy)
            loss = nn.functional.mse_loss(output.float(), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step <= 100 or step % 5 == 0:
                print(f"step {step} loss {loss.item():.8f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
