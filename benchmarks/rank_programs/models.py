"""The models and batches that one_device.py and expert_ddp.py train: written once."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.short(x))


def resnet():
    widths = [(3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 2)]
    blocks = [Block(*width) for width in widths]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


class Classifier(nn.Module):
    """A transformer over tokens that answers with one of ten classes."""

    def __init__(self, vocabulary=2000, width=256, layers=4, length=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.layers(x).mean(1))


def mlp():
    layers = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def made(name, rows):
    """A model and the whole data set: images, tokens or plain rows."""
    dice = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (rows,), generator=dice)
    if name == "resnet":
        return resnet(), torch.randn(rows, 3, 32, 32, generator=dice), labels
    if name == "transformer":
        return Classifier(), torch.randint(2000, (rows, 64), generator=dice), labels
    return mlp(), torch.randn(rows, 512, generator=dice), labels
