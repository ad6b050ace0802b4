"""Bytes of tensors by what they are for: against arithmetic, and against torch's profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent.speedups import nests
from flatout_agent.speedups.step_memory import StepMemory
from flatout_agent.speedups.tensor_bytes import TensorBytes

KIB = 1024


class Outputs(TorchDispatchMode):
    def __init__(self, tensors: TensorBytes) -> None:
        super().__init__()
        self.tensors = tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in nests.tensors(output):
            self.tensors.see(tensor)
        return output


def zeros(kib: int) -> torch.Tensor:
    return torch.zeros(kib * KIB, dtype=torch.uint8)


def test_storages_count_once_and_until_they_are_freed() -> None:
    books = TensorBytes("cpu")
    with Outputs(books):
        first = zeros(3)
        view = first[:KIB]
        assert books.in_use["transient"] == 3 * KIB
        second = zeros(2)
        del second
        assert (books.in_use["transient"], books.peak) == (3 * KIB, 5 * KIB)
        books.see(view, "weights")
        assert books.in_use["weights"] == 3 * KIB
        books.start_peak()
        assert (books.in_use["transient"], books.peak) == (0, 0)
        del first
        assert books.in_use["weights"] == 3 * KIB
        del view
        assert books.in_use["weights"] == 0


def test_other_devices_and_sparse_tensors_are_left_out() -> None:
    books = TensorBytes("cuda")
    books.see(zeros(1))
    cpu = TensorBytes("cpu")
    cpu.see(torch.eye(3).to_sparse())
    assert sum(books.in_use.values()) == sum(cpu.in_use.values()) == 0


def test_gradients_at_the_moment_of_most_activations() -> None:
    books = TensorBytes("cpu")
    gradient = zeros(4)
    books.see(gradient, "gradients")
    with Outputs(books):
        activation = zeros(2)
    assert (books.transient_peak, books.gradients_then, books.peak) == (2 * KIB, 4 * KIB, 6 * KIB)
    del activation


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


@contextmanager
def measured(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    memory = StepMemory("cpu")
    memory.add_model(model)

    def step(rows: int) -> None:
        batch = torch.randn(rows, 64)
        with Outputs(memory.tensors):
            memory.begin(rows)
            memory.call()
            loss = model(batch).square().mean()
            loss.backward()
            memory.update_begins()
            optimizer.step()
            memory.update_ends(optimizer)
            optimizer.zero_grad()
        memory.end()

    step.memory = memory  # type: ignore[attr-defined]
    yield step
    memory.close()


def test_a_step_by_its_parts() -> None:
    model = nn.Sequential(*(Block() for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    with measured(model, optimizer) as step:
        for rows in (32, 32, 64, 64):
            step(rows)
    seen = step.memory.seen([optimizer], batch_rows=128)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert seen.parameters_bytes == seen.gradients_bytes == parameters
    assert seen.state_bytes == 2 * parameters + 4 * 16  # and a counter for each parameter
    assert (seen.blocks, seen.blocks_bytes) == (4, parameters)
    assert seen.largest_block_bytes == parameters // 4
    assert (seen.model, seen.optimizer) == ("Sequential", "AdamW")
    small, large = seen.points
    assert (small.rows, large.rows) == (32, 64)
    block = 4 * (256 + 64)  # of a sample: what the ReLU gives, and the block
    assert small.saved_bytes == 4 * 32 * block
    assert large.saved_bytes == 2 * small.saved_bytes
    assert large.outputs_bytes == 2 * small.outputs_bytes == 4 * 64 * 64 * 4
    own = small.saved_bytes / 4 + 32 * 4 * (64 + 2 * 256)
    assert small.again_bytes == own + 3 * 32 * 4 * 64  # with the outputs of those before the last
    assert small.update_bytes > 0
    for handle in (model[0], next(model.parameters())):
        assert not getattr(handle, "_forward_hooks", None)


def test_the_peak_is_that_of_torchs_profiler() -> None:
    model = nn.Sequential(*(Block() for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with measured(model, optimizer) as step:
        step(256)
        with torch.profiler.profile(profile_memory=True) as profiler:
            step(256)
    in_use = highest = 0
    for _, change in sorted(changes(profiler)):
        in_use += change
        highest = max(highest, in_use)
    found = step.memory.points[-1].peak_bytes
    assert abs(found / (highest - 256 * 64 * 4) - 1) < 0.1  # the batch was made outside


def changes(profiler: Any) -> Iterator[tuple[int, int]]:
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if "Allocation" in str(event.tag):
            yield event.start_time_ns, event.extra_fields.alloc_size
