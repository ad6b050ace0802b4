"""Ranks on two GPUs: which device each has, NCCL, and the order of streams."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import forked
import native_ranked
import ranked
from agent_paths import INJECT
from flatout.running.ranks.layout import RankLayout
from flatout.running.ranks.native import NativeStart
from flatout_agent import wire

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
GPUS = ("0", "1")
DEVICES = """
import json, torch
model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    model(torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
uuid = str(torch.cuda.get_device_properties(0).uuid)
print(json.dumps([uuid, torch.cuda.device_count(), str(model.weight.device)]))
"""
STREAMS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
                      nn.Linear(2048, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
own = torch.cuda.Stream()
busy = torch.randn(4096, 4096, device="cuda")
for step in range(30):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(step)).cuda()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        for _ in range(5):  # it runs behind: who does not wait reads old numbers
            busy = torch.tanh(busy @ busy)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("step", step, "loss", loss.item(), flush=True)
"""


def on_gpus(folder: Path, words: list[str], size: int) -> ranked.Ranked:
    """The program on so many ranks with a GPU each; 1: alone on the first one."""
    layout = RankLayout(size, ranked.SEED, 1, GPUS[:size])
    records = folder / f"records-{size}"
    records.mkdir()
    processes = []
    for rank in range(size):
        store = folder / f"store-{size}" if size > 1 else ""
        orders = wire.Orders(
            str(records), ranks=wire.RankOrders(rank, size, str(store), layout.seed)
        )
        path = folder / f"orders-{size}-{rank}.json"
        path.write_text(wire.dump(orders))
        base = dict(os.environ, PYTHONPATH=str(INJECT))
        env = {**layout.environment(rank, base), wire.ORDERS_ENV: str(path)}
        processes.append(forked.start_own(words, folder, env))
    return ranked.ended(processes, records, 200.0)


def equal(folder: Path, words: list[str]) -> None:
    alone, together = on_gpus(folder, words, 1), on_gpus(folder, words, 2)
    assert alone.codes == (0,), alone.errors
    assert together.codes == (0, 0), (together.refused, together.faults, together.errors)
    assert together.seen.backend == "nccl"
    assert all(region.cut for region in together.seen.regions), together.seen.regions
    expected = ranked.losses(alone.outputs[0])
    assert expected
    assert ranked.losses(together.outputs[0]) == pytest.approx(expected, rel=1e-3)


def test_each_rank_has_a_gpu_of_its_own_as_the_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DEVICES)
    together = on_gpus(tmp_path, ["train.py"], 2)
    assert together.codes == (0, 0), (together.refused, together.faults, together.errors)
    first, second = (json.loads(output) for output in together.outputs)
    assert first[0] != second[0]
    assert first[1:] == second[1:] == [1, "cuda:0"]


def test_gradients_through_nccl_are_those_of_one_process(root: Path, tmp_path: Path) -> None:
    equal(tmp_path, [str(root / "tests" / "jobs" / "no_loader.py"), "--steps", "20"])


def test_the_exchange_keeps_to_the_stream_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STREAMS)
    equal(tmp_path, ["train.py"])


def test_a_framework_takes_the_device_of_its_rank(root: Path, tmp_path: Path) -> None:
    words = [str(root / "tests" / "jobs" / "accelerate_loop.py"), "--steps", "20"]
    alone = on_gpus(tmp_path, words, 1)
    together = native_ranked.run(tmp_path, words, NativeStart("accelerate"), gpus=GPUS)
    assert together.codes == (0, 0), (together.refused, together.faults, together.errors)
    assert together.seen.backend == "nccl"
    expected = ranked.losses(alone.outputs[0])
    assert ranked.losses(together.outputs[0]) == pytest.approx(expected, rel=1e-3)
