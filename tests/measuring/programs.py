"""Small training programs of which it is known beforehand how they behave."""

from __future__ import annotations

WITHOUT_COMPILER = """
import sys, types
import torch
torch._dynamo = sys.modules["torch._dynamo"] = types.SimpleNamespace(
    disable=lambda function, *args, **kwargs: function, graph_break=lambda: None
)
"""
"""Optimizers import torch's compiler, which takes a small program as long as torch itself. For
programs that nothing compiles."""

WITH_COMPILER = """
import gc, os, signal, subprocess, sys, time
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(256, 64)
for step in range(100_000):
    # at each step
    inputs = data[torch.randint(0, 256, (64,))]
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

PLAIN = WITHOUT_COMPILER + WITH_COMPILER

PAUSED = "gc.get_threshold()[0] == 100_000"
"""What tells the program that gc-pause is on."""


def at_each_step(line: str) -> str:
    """PLAIN, with one more line at the start of each step."""
    return PLAIN.replace("# at each step", line)


SLOW_UNLESS_PAUSED = at_each_step(f"time.sleep(0 if {PAUSED} else 0.02)")
"""The one program that gc-pause makes several times as fast."""
