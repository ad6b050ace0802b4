"""The same training as one_device.py, as an expert writes it for DistributedDataParallel."""

import argparse
import statistics
import time

import models
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="resnet")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--steps", type=int, default=40)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model, inputs, labels = models.made(args.model, args.batch * args.steps)
model = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(inputs, labels)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=args.batch // dist.get_world_size(), sampler=sampler)
times = []
for x, y in loader:
    began = time.perf_counter()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print("step", len(times), "loss", loss.item())
if dist.get_rank() == 0:
    print("STEP_MS", 1000 * statistics.median(times[len(times) // 4 :]))
dist.destroy_process_group()
