from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import forked
from flatout_agent.speedups.repeated_blocks import repeated_blocks
from flatout_train.step.buffers import Buffers
from flatout_train.step.fitting import Fit
from flatout_train.step.splitting import batch_size
from train.step.limited_memory import Block, Blocks, Held, Memory

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
Recompute = Any


class Loop:
    """A plain loop around Fit: mean losses, parts weighed by their samples."""

    def __init__(self, model: nn.Module, recompute: Recompute = False) -> None:
        self.model, self.fit = model, Fit(model, CPU, recompute)
        self.buffers = Buffers(model)
        self.tries: list[list[int]] = []
        """Sizes of the parts of each attempt."""

    def attempt(self, parts: list[Any]) -> Tensor:
        sizes = [batch_size(part) for part in parts]
        self.tries.append(sizes)
        total = torch.zeros((), dtype=torch.float64)
        for (x, y), size in zip(parts, sizes, strict=True):
            loss = F.cross_entropy(self.model(x), y) * (size / sum(sizes))
            loss.backward()
            total += loss.detach()
        return total

    def undo(self) -> None:
        self.model.zero_grad()
        self.buffers.restore()

    def __call__(self, batch: Any) -> Tensor:
        self.model.zero_grad()
        self.buffers.keep()
        return self.fit.run(batch, self.attempt, self.undo)

    def gradient(self) -> list[Tensor]:
        return [p.grad.clone() for p in self.model.parameters() if p.grad is not None]


def batch_of(rows: int, width: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, width, dtype=torch.float64), torch.randint(3, (rows,))


def plain_gradient(model: nn.Module, batch: Any) -> list[Tensor]:
    model.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return grads


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def sequence(memory: Memory) -> nn.Sequential:
    """No repeated blocks: splitting is all that can be done. Holds 8 elements a sample."""
    return nn.Sequential(nn.Linear(8, 8), Held(memory), nn.Tanh(), nn.Linear(8, 3)).double()


def test_the_gradient_of_a_split_step_is_that_of_the_whole() -> None:
    memory = Memory(float("inf"))
    loop = Loop(sequence(memory), "auto")
    batch = batch_of(33)
    wanted = plain_gradient(loop.model, batch)
    whole_loss = F.cross_entropy(loop.model(batch[0]), batch[1]).item()
    memory.limit = 8 * 16
    loss = loop(batch)
    assert_same(loop.gradient(), wanted)
    assert loss.item() == pytest.approx(whole_loss, rel=1e-12)
    assert len(loop.tries) > 1
    assert memory.held == 0


def test_what_fits_is_remembered_by_the_size_of_the_batch() -> None:
    memory = Memory(8 * 5)
    loop = Loop(sequence(memory))
    loop(batch_of(16))
    assert loop.tries == [[16], [8, 8], [4, 4, 4, 4]]
    loop.tries.clear()
    for rows in (16, 3, 4, 7, 64, 16):
        loop(batch_of(rows))
    assert loop.tries == [
        [4] * 4,  # never again what did not fit
        [3],
        [4],
        [7],  # not known: between what fitted and what did not
        [3, 4],
        [4] * 16,  # a larger one in as many parts as it takes, at once
        [4] * 4,
    ]


def test_a_failed_attempt_leaves_nothing_behind() -> None:
    memory = Memory(8 * 16)
    model = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), Held(memory), nn.Linear(8, 8), Held(memory)
    ).double()
    loop = Loop(model)
    seen: list[weakref.ref[Tensor]] = []
    model[1].register_forward_hook(lambda *args: seen.append(weakref.ref(args[2])))
    alive: list[int] = []
    plain = loop.undo

    def undo() -> None:
        plain()
        alive.append(memory.held)

    loop.undo = undo  # type: ignore[method-assign]
    gc.disable()
    try:
        loop(batch_of(16))
    finally:
        gc.enable()
    assert loop.tries == [[16], [8, 8]]
    assert alive == [8 * 16]  # the failed attempt's activations lived in its frames...
    assert memory.peak == 8 * 16  # ...and were gone before the next one
    assert memory.held == 0
    assert [ref() for ref in seen] == [None] * 3
    assert model[1].num_batches_tracked == 2  # the parts; not the failed attempt


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (
            {"x": torch.ones(4, 8), "y": torch.ones(4).long()},
            "one sample of the batch's 4 ([1, 8] float32, [1] int64) does not fit into the memory "
            "of cpu beside the model. Smaller samples, recompute=True",
        ),
        ({"text": "abc"}, "a batch that cannot be split"),
    ],
)
def test_what_cannot_be_made_to_fit_is_told(batch: Any, says: str) -> None:
    failures: list[MemoryError] = []

    def attempt(parts: list[Any]) -> Tensor:
        failures.append(MemoryError())
        raise failures[-1]

    fit = Fit(nn.Linear(1, 1), CPU, "auto")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        fit.run(batch, attempt, lambda: None)
    assert says in str(raised.value)
    assert raised.value.__cause__ is failures[-1]


def test_a_larger_sample_that_does_not_fit_unlearns_nothing() -> None:
    tries: list[int] = []

    def attempt(parts: list[Any]) -> Tensor:
        tries.append(len(parts))
        if parts[0].numel() > 8:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return torch.zeros(())

    fit = Fit(nn.Linear(1, 1), CPU, False)
    fit.run(torch.ones(16), attempt, lambda: None)
    with pytest.raises(torch.OutOfMemoryError, match="one sample"):
        fit.run(torch.ones(2, 100), attempt, lambda: None)
    fit.run(torch.ones(16), attempt, lambda: None)
    assert tries == [1, 2, 2, 2]


def plain_gradient_of(loop: Loop, rows: int) -> list[Tensor]:
    memory = next(m.memory for m in loop.model.modules() if isinstance(m, Held))
    limit, memory.limit = memory.limit, float("inf")
    grads = plain_gradient(loop.model, batch_of(rows))
    memory.limit = limit
    return grads


# 4 blocks of 3 activations of 8 elements: 96 a sample. Recomputed, one block's 24 and no more.
WHOLE, ONE_BLOCK = 96, 24


@pytest.mark.parametrize(
    ("limit", "note", "last"),
    [
        (WHOLE - 1, "recomputes every block, not split: ", [3]),
        (2 * ONE_BLOCK, "recomputes every block, split in 2: ", [1, 2]),
    ],
)
def test_where_one_sample_does_not_fit_blocks_are_recomputed(
    limit: int, note: str, last: list[int]
) -> None:
    loop = Loop(Blocks(Memory(limit)).double(), "auto")
    wanted = plain_gradient_of(loop, 3)
    for _ in range(3):
        loop(batch_of(3))
        assert_same(loop.gradient(), wanted)
    assert loop.tries[-1] == last
    assert loop.fit.note.startswith(note)
    loop.fit.close()
    assert [type(block) for block in repeated_blocks(loop.model)] == [Block] * 4


def test_what_splitting_makes_fit_is_not_recomputed() -> None:
    loop = Loop(Blocks(Memory(16 * WHOLE / 2)).double(), "auto")
    for _ in range(3):
        loop(batch_of(16))
    assert loop.tries == [[16], [8, 8], [8, 8], [8, 8]]
    assert loop.fit.note == "split in 2: it did not fit at once"


def test_recompute_true_does_so_from_the_start() -> None:
    memory = Memory(16 * (ONE_BLOCK + 4 * 8))
    loop = Loop(Blocks(memory).double(), True)
    wanted = plain_gradient_of(loop, 16)
    loop(batch_of(16))
    assert_same(loop.gradient(), wanted)
    assert loop.tries == [[16]]
    assert loop.fit.note == "recomputes every block: requested"
    loop.fit.close()
    assert [type(block) for block in repeated_blocks(loop.model)] == [Block] * 4


REAL = """
import resource, sys
import torch
from torch import nn
from flatout_train.step.fitting import Fit
from flatout_train.step.splitting import batch_size

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 2048), nn.Tanh(), nn.Linear(2048, 1))
x = torch.randn(16384, 64)
tries = []

def attempt(parts):
    tries.append(len(parts))
    total = torch.zeros(())
    for part in parts:
        loss = model(part).square().mean() * (batch_size(part) / len(x))
        loss.backward()
        total += loss.detach()
    return total

def undo():
    model.zero_grad()

attempt(list(x.split(256)))
wanted = [p.grad.clone() for p in model.parameters()]
undo()
tries.clear()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
# one hidden layer of all rows is 128 MiB, and a step holds three
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20,) * 2)
fit = Fit(model, torch.device("cpu"), "auto")
for _ in range(3):
    undo()
    fit.run(x, attempt, undo)
for parameter, grad in zip(model.parameters(), wanted):
    torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-6)
print(tries)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_a_real_limit_of_memory_is_met(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(REAL)
    done = forked.bare([str(tmp_path / "program.py")], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    tries = eval(done.stdout)
    assert tries[0] == 1
    assert tries[-1] > 1
    assert tries[-3:] == tries[-1:] * 3


@pytest.mark.gpu
def test_on_a_gpu_that_is_full() -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(8)))
    model = model.to(device, torch.float64)
    x = torch.randn(32768, 512, device=device, dtype=torch.float64)

    def attempt(parts: list[Tensor]) -> Tensor:
        total = torch.zeros((), device=device, dtype=torch.float64)
        for part in parts:
            loss = model(part).square().mean() * (len(part) / len(x))
            loss.backward()
            total += loss.detach()
        return total

    attempt([x])
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties(device).total_memory
    limit = torch.cuda.memory_reserved() + 900 * 2**20  # whole it takes 1 GiB and more
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        fit = Fit(model, device)
        for _ in range(3):
            model.zero_grad()
            fit.run(x, attempt, model.zero_grad)
            for parameter, grad in zip(model.parameters(), wanted, strict=True):
                torch.testing.assert_close(parameter.grad, grad, rtol=1e-10, atol=1e-12)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert fit.note.startswith("split in")
    model.zero_grad()
    assert torch.cuda.memory_allocated() == before
