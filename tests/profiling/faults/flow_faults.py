"""A small training on the CPU, sound as it is, with the faults of data flow that `--fault` names.

python flow_faults.py [--fault NAME[,NAME...]]
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH, WIDTH, BATCH, STEPS = 256, 64, 4, 400
KERNEL = torch.tensor([[[0.25, 0.5, 0.25]]])


class Sequences(Dataset):
    def __init__(self, faults):
        wide = np.random.default_rng(0).normal(size=(64, LENGTH, WIDTH))
        self.rows = wide if "float64" in faults else wide.astype(np.float32)

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        return {
            "x": torch.from_numpy(self.rows[index % 64]),  # fault: float64
            "y": index % 10,
        }


class Model(nn.Module):
    def __init__(self, faults):
        super().__init__()
        self.faults = faults
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = nn.BatchNorm1d(LENGTH)
        self.head = nn.Linear(WIDTH, 10)
        self.register_buffer("mask", causal(LENGTH), persistent=False)

    def forward(self, x):
        if "channels" in self.faults:
            x = smoothed(x)
        mask = self.mask
        if "mask" in self.faults:
            mask = causal(LENGTH)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=2)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(x.mean(dim=1))


def causal(length):
    mask = torch.zeros(length, length)
    for row in range(length):
        mask[row, row + 1 :] = -1e9  # fault: mask
    return mask


def smoothed(x):
    x, maps = x.transpose(1, 2), []
    for channel in range(WIDTH):  # fault: channels
        maps.append(F.conv1d(x[:, channel : channel + 1], KERNEL, padding=1))
    return torch.cat(maps, 1).transpose(1, 2)


def validate(model, x):
    model.eval()
    with torch.no_grad():
        labels = [model(x).argmax(1).tolist() for _ in range(3)]
    model.train()
    return labels


class Meter:
    """Keeps what it is given, as a running sum."""

    def __init__(self):
        self.sum, self.count = torch.zeros(()), 0

    def update(self, value):
        self.count += 1
        self.sum = self.sum + value  # fault: kept


def train(faults):
    torch.manual_seed(0)
    if "anomaly" in faults:
        torch.autograd.set_detect_anomaly(True)  # fault: anomaly
    model, teacher, meter = Model(faults), Model(()), Meter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    correct = 0
    for number, batch in enumerate(DataLoader(Sequences(faults), BATCH)):
        x, y = batch["x"], batch["y"]
        if "float64" in faults:
            x = torch.tanh(x - x.mean(dim=2, keepdim=True)) / x.std(dim=2, keepdim=True)
            x = x.float()
        with torch.no_grad():
            target = teacher(x)
        output = model(x)
        if "unread" in faults:
            logits = model(x)  # noqa: F841  # fault: unread
        loss = F.cross_entropy(output, y) + 0.1 * F.mse_loss(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += int((output.argmax(dim=1).numpy() == y.numpy()).sum())
        if "often" in faults and number % 2:
            validate(model, x)  # fault: often
        meter.update(loss if "kept" in faults else loss.detach())
    return correct


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: text.split(","))
    train(parser.parse_args().fault)
