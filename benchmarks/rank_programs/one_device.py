"""A training script for one device, as anyone writes it."""

import argparse
import statistics
import time

import models
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="resnet")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--steps", type=int, default=40)
args = parser.parse_args()

torch.manual_seed(0)
model, inputs, labels = models.made(args.model, args.batch * args.steps)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=args.batch, shuffle=True)
times = []
for x, y in loader:
    began = time.perf_counter()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
    print("step", len(times), "loss", loss.item())
print("STEP_MS", 1000 * statistics.median(times[len(times) // 4 :]))
