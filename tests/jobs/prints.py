"""Shows all that a program can see of how it was started, then trains, then shows it again."""

import argparse
import json
import os
import sys

import torch
from torch import nn


def show(when):
    facts = {
        "when": when,
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "cwd": os.getcwd(),
        "file": __file__,
        "name": __name__,
        "spec": repr(__spec__),
        "executable": sys.executable,
        "flags": list(sys.flags),
        "path": sys.path,
        "environment": dict(sorted(os.environ.items())),
    }
    print(json.dumps(facts))
    print("shown", when, file=sys.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)

    show("before")
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, args.steps + 1):
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", repr(loss.item()))
    show("after")


if __name__ == "__main__":
    main()
