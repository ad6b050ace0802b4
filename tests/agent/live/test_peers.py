"""Ranks that decide together: what one of them sees alone keeps no other waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import forked
from agent.live.test_checks import PLANT, WATCH
from agent_paths import INJECT
from flatout_agent import wire
from flatout_agent.live.peers import Peers

FACTS = wire.JobFacts("2.13.0", "3.11", "linux", "cuda", capability=(9, 0))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Peers], dist.Store]:
    """Three ranks in one process, and their store."""
    store = dist.HashStore()
    monkeypatch.setattr(Peers, "_store", lambda peers: store)
    monkeypatch.setenv("WORLD_SIZE", "3")
    made = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        made.append(Peers())
    return made, store


def at_once(ranks: list[Peers], ask: Callable[[Peers], Any]) -> list[Any]:
    """What each rank is answered, all asking at the same time."""
    answers: list[Any] = [None] * len(ranks)

    def run(rank: int) -> None:
        answers[rank] = ask(ranks[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize(("how", "answer"), [("first", 5.0), ("max", 7.0), ("min", 5.0)])
def test_all_ranks_get_one_answer(ranks: Any, how: str, answer: float) -> None:
    peers, _ = ranks
    for _ in range(3):
        assert at_once(peers, lambda own: own.agree(5.0 + own.rank, how)) == [answer] * 3


def test_what_all_have_read_does_not_fill_the_store(ranks: Any) -> None:
    peers, store = ranks
    for _ in range(50):
        at_once(peers, lambda own: own.agree(1.0, "min"))
    assert store.num_keys() == len(peers)


def test_the_facts_of_the_first_rank_decide(ranks: Any) -> None:
    peers, _ = ranks
    told = at_once(peers, lambda own: own.facts_of_first(replace(FACTS, cores=8 + own.rank)))
    assert told == [replace(FACTS, cores=8)] * 3


SAVES_ON_ONE_RANK = (
    PLANT
    + WATCH
    + """
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def fault(output): return output
rank = int(os.environ["RANK"])
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    open("writing", "w").write(str(store.port))
    os.rename("writing", "port")
while not os.path.exists("port"):
    time.sleep(0.01)
if rank == 1:
    store = dist.TCPStore("127.0.0.1", int(open("port").read()), 2, False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
model = DistributedDataParallel(model)
for step in range(steps):
    x, y = torch.randn(16, 20), torch.randint(10, (16,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 7 == 0:
        torch.save(model.state_dict(), "weights.pt")
    if step % 20 == 19:
        over = torch.tensor(float(watch.story is None))
        dist.all_reduce(over, dist.ReduceOp.MIN)
        if over: break
print(step, watch.tuning.state.settled, watch.tuning.state.kept_ids)
# Gloo's threads let go of what the last backward pass gave them: see tests/jobs/ddp.py.
for _ in range(20):
    dist.barrier()
    time.sleep(0.01)
dist.destroy_process_group()
"""
)


@pytest.mark.slow
@pytest.mark.skipif(not forked.POSSIBLE, reason="programs are forks")
def test_a_rank_that_saves_alone_does_not_part_from_the_others(tmp_path: Path) -> None:
    """Its step is not measured on any rank, so all ask the same questions, and all keep the same.

    A rank that waits for an answer in vain gives up after two minutes and records a fault.
    """
    records = tmp_path / "records"
    records.mkdir()
    (tmp_path / "script.py").write_text(SAVES_ON_ONE_RANK)
    orders = tmp_path / "orders.json"
    told = wire.Orders(str(records), (), live=wire.LiveOrders(allowed=("planted",)))
    orders.write_text(wire.dump(told))
    common = dict(os.environ, PYTHONPATH=str(INJECT), OMP_NUM_THREADS="1", WORLD_SIZE="2")
    common[wire.ORDERS_ENV] = str(orders)
    processes = [
        forked.start(["script.py", "20000"], tmp_path, {**common, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    lines = [line for path in records.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert [line for line in lines if isinstance(wire.record(line), wire.Fault)] == []
    first, second = (out.strip() for out, _ in outputs)
    assert first == second
    assert first.endswith("True ['planted']")
