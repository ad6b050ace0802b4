"""Run a script in which cuda-graphs records on tapes, as if the host were a GPU.

`taped.py script.py ...`, with the agent inside and the boost in its orders.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import torch

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import cuda_graphs
from flatout_agent.speedups.graphs import graphed_calls, recordings
from replayed import Capture


def apply(job: Any, target: torch.nn.Module, params: Any) -> Applied:
    reason = cuda_graphs._cannot(target)
    if reason is not None:
        raise Declined(reason)
    return graphed_calls.put_on(job, target, Capture())


class Host(recordings._Host):
    """As on a GPU: draws and tensors that the pass writes to are the device's, and replayed."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.drawn: Any = ()
        before = [None, *self.noted]
        pairs = zip(before, self.noted, strict=False)
        self.noted = [mark for last, mark in pairs if not isinstance(last, torch.Tensor)]


cuda_graphs.apply = apply
recordings._Host = Host  # type: ignore[misc]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
