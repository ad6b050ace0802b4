"""Clips of several lengths, sound as it is, with needless rows as `--fault` names them.

python rows_faults.py [--fault NAME[,NAME...]]
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

LONGEST, FEATURES, WIDTH, ANSWERS, BATCH, STEPS = 96, 20, 64, 96, 32, 400


class Clips(Dataset):
    def __init__(self):
        lengths = np.random.default_rng(0).integers(8, 33, 512)
        torch.manual_seed(0)
        self.clips = [torch.randn(length, FEATURES) for length in lengths.tolist()]

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        return self.clips[index % 512], index % ANSWERS


class Collate:
    def __init__(self, faults):
        self.faults = faults

    def __call__(self, samples):
        lengths = torch.tensor([len(clip) for clip, _ in samples])
        if "frames" in self.faults:
            clips = torch.zeros(len(samples), LONGEST, FEATURES)  # fault: frames
        else:
            clips = torch.zeros(len(samples), int(lengths.max()), FEATURES)
        for row, (clip, _) in zip(clips, samples, strict=True):
            row[: len(clip)] = clip
        return clips, lengths, torch.tensor([answer for _, answer in samples])


class Model(nn.Module):
    def __init__(self, faults):
        super().__init__()
        self.faults = faults
        self.stem = nn.Linear(FEATURES, WIDTH)
        self.head = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, ANSWERS)
        )

    def forward(self, clips, lengths):
        states = torch.tanh(self.stem(clips)).cumsum(1) / 8
        rows = torch.arange(len(clips))
        if "rows" in self.faults:
            answers = self.head(states)  # fault: rows
            return answers[rows, lengths - 1]
        return self.head(states[rows, lengths - 1])


def train(faults):
    torch.manual_seed(0)
    model = Model(faults)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    wanted = torch.eye(ANSWERS)
    for clips, lengths, answers in DataLoader(Clips(), BATCH, collate_fn=Collate(faults)):
        loss = F.mse_loss(model(clips, lengths), wanted[answers])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: text.split(","))
    train(parser.parse_args().fault)
