"""Two processes that train one model: is their gradient that of one process alone?

torch is imported once, before the second process is forked.
"""

import os
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import flatout
from flatout_train.checkpoint.tracked import unwrapped

ROWS = ((5, 1, 2, 7, 3), (2, 4, 3, 1, 6))
"""Samples in each batch, by rank: groups of three, then a short one of two."""
OPTIONS: dict[str, Any] = {"precision": "fp32", "compile": False}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(rank)
    data = []
    for rows in ROWS[rank]:
        target = torch.randint(0, 3, (rows,), generator=made)
        target[: rows // 2] = -100
        data.append((torch.randn(rows, 4, generator=made, dtype=torch.float64), target))
    return data


def expected(plain: nn.Module, places: slice, weigh: str) -> list[torch.Tensor]:
    """The gradient over all batches of both ranks at once."""
    chosen = [batch for rank in (0, 1) for batch in batches(rank)[places]]
    inputs, targets = (torch.cat(each) for each in zip(*chosen, strict=True))
    plain.zero_grad()
    if weigh == "samples":
        every = F.cross_entropy(plain(inputs), targets, reduction="none")
        every.mean().backward()
    else:
        reduction = "sum" if weigh == "sum" else "mean"
        F.cross_entropy(plain(inputs), targets, reduction=reduction).backward()
    return [parameter.grad.clone() for parameter in plain.parameters()]


def loss_of(weigh: str) -> Any:
    if weigh == "samples":
        return lambda output, target: F.cross_entropy(output, target, reduction="none").mean()
    return nn.CrossEntropyLoss(reduction="sum" if weigh == "sum" else "mean")


def wrapped(kind: str) -> tuple[nn.Module, list[int]]:
    """The model for both ranks, and a counter of its gradient communications."""
    net, count = model(), [0]
    if kind == "fsdp":
        for layer in net:
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        fully_shard(net)
        return net, count
    replica = nn.parallel.DistributedDataParallel(net)

    def counted(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        count[0] += 1
        gradient = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(gradient, async_op=True).get_future()
        return work.then(lambda future: future.value()[0])

    replica.register_comm_hook(None, counted)
    return replica, count


def whole(gradient: Any) -> torch.Tensor:
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def check(kind: str, weigh: str, accumulate: int) -> None:
    net, count = wrapped(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    step = flatout.train_step(
        net, loss_of(weigh), optimizer, accumulate=accumulate, weigh=weigh, clip_norm=1e9, **OPTIONS
    )
    plain = model()
    for place, batch in enumerate(batches(dist.get_rank()), start=1):
        before = count[0]
        step(batch)
        ends = place % accumulate == 0
        if kind == "ddp":
            assert (count[0] > before) == ends, f"communicated {count[0] - before} times"
        if ends:
            compare(net, expected(plain, slice(place - accumulate, place), weigh), step)
    rest = len(ROWS[0]) % accumulate
    assert step.flush() == bool(rest)
    if rest:
        compare(net, expected(plain, slice(-rest, None), weigh), step)
    assert not step.flush()


def compare(net: nn.Module, gradients: list[torch.Tensor], step: Any) -> None:
    found = [whole(parameter.grad) for parameter in net.parameters()]
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    norm = torch.nn.utils.get_total_norm(gradients).item()
    torch.testing.assert_close(step.metrics().grad_norms[-1], norm, rtol=1e-6, atol=0)


def check_skip() -> None:
    """A NaN on one rank: both leave the step out."""
    net, _ = wrapped("ddp")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = flatout.train_step(net, loss_of("tokens"), optimizer, nonfinite="skip", **OPTIONS)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    input, target = batches(dist.get_rank())[0]
    if dist.get_rank() == 1:
        input = input * float("nan")
    step((input, target))
    assert step.metrics().skipped == 1
    assert all(map(torch.equal, before, net.parameters()))
    assert unwrapped(net) is net.module


def main() -> None:
    store, *kinds = sys.argv[1:]
    other = os.fork()
    rank = 0 if other else 1
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        check_all(kinds)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.write(f"rank {rank} agrees\n")
    sys.stdout.flush()
    failed = bool(other) and os.waitpid(other, 0)[1] != 0
    os._exit(failed)  # gloo's threads abort the process now and then while it is taken down


def check_all(kinds: list[str]) -> None:
    for kind in kinds:
        for weigh in ("samples", "tokens", "sum"):
            check(kind, weigh, 3)
        check(kind, "tokens", 1)
    if "ddp" in kinds:
        check_skip()
    dist.barrier()


if __name__ == "__main__":
    main()
