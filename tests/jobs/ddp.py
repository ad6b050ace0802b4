"""DistributedDataParallel: torchrun --nproc-per-node 2 ddp.py."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1024, 64, generator=generator)
    data = TensorDataset(inputs, inputs[:, :8].argmax(dim=1))
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for batch, target in loader:
            loss = nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                print("step", step, "loss", repr(loss.item()), flush=True)
            if step == args.steps:
                break
    # Gloo's threads still hold what the last backward pass gave them. One that lets go of it while
    # Python ends aborts the process (pytorch/pytorch#190489): here it lets go before.
    for _ in range(20):
        dist.barrier()
        time.sleep(0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
