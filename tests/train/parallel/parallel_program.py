"""Some processes that train one model by `flatout.parallelize`: are their losses one process's?

    python parallel_program.py STORE RANKS NODES CASE...

torch is imported once, before the other ranks are forked.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F

import flatout
from flatout_train.parallel.parallelize import parallelize
from flatout_train.parallel.result import Parallel

ROWS, STEPS = 8, 5
"""Samples in each global batch, and steps."""
BIG = 2**40


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.blocks = nn.Sequential(*(Block(16) for _ in range(4)))
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks(self.first(x)))


class Language(nn.Module):
    """A small transformer with tied weights, and with a temperature without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embed.weight
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden).flatten(0, 1) * self.temperature


def made(kind: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    if kind == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 12}
        config = LlamaConfig(
            **sizes, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
        )
        return LlamaForCausalLM(config)
    return Mlp() if kind == "mlp" else Language()


def batch(kind: str, number: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(number)
    if kind == "mlp":
        inputs = torch.randn(ROWS, 6, generator=generator)
        return inputs, torch.randint(0, 5, (ROWS,), generator=generator)
    tokens = torch.randint(0, 11, (ROWS, 7), generator=generator)
    return tokens, tokens.roll(1, 1)


def loss_of(output: Any, targets: torch.Tensor) -> torch.Tensor:
    logits = getattr(output, "logits", output)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    if isinstance(model, Mlp):
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    # The gradient of a key's bias is 0 but for rounding, which AdamW makes as large as any other.
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone(kind: str, steps: int = STEPS) -> tuple[list[float], nn.Module]:
    """Losses of one process with the whole batches."""
    model = made(kind)
    optimizer = optimizer_of(model)
    losses = []
    for number in range(steps):
        inputs, targets = batch(kind, number)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def trained(parallel: Parallel, kind: str, first: int = 0, steps: int = STEPS) -> list[float]:
    losses = []
    for number in range(first, first + steps):
        inputs, targets = batch(kind, number)
        if parallel.plan == "pp":
            mean = parallel.step(inputs, targets)
        else:
            rows = slice(parallel.data_rank, None, parallel.data_ranks)
            loss = loss_of(parallel.model(inputs[rows]), targets[rows])
            loss.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        parallel.clip_grad_norm(1.0)
        assert parallel.optimizer is not None
        parallel.optimizer.step()
        parallel.optimizer.zero_grad()
        losses.append(mean.item())
    return losses


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=2e-5, atol=1e-6)


def train(kind: str, plan: str, **options: Any) -> Parallel:
    """Losses, state and what follows from the loaded state agree with one process."""
    model = made(kind, seed=dist.get_rank())  # rank 0's weights count
    parallel = parallelize(model, optimizer_of(model), plan, **options)
    assert parallel.plan == plan or plan == "auto"
    expected, plain = alone(kind)
    close(trained(parallel, kind), expected)
    state = parallel.full_state()
    if dist.get_rank() == 0:
        wanted = plain.state_dict()
        assert set(state["model"]) == set(wanted)
        for name, tensor in wanted.items():
            torch.testing.assert_close(state["model"][name], tensor, rtol=1e-3, atol=1e-4)
    else:
        assert state == {}
    if plan != "pp":
        again = made(kind, seed=7)
        fresh = parallelize(again, optimizer_of(again), plan, **options)
        fresh.load_full_state(state)
        close(trained(fresh, kind, STEPS, 2), alone(kind, STEPS + 2)[0][STEPS:])
    return parallel


def case_auto() -> None:
    """With room for all, then with less and less of it."""
    inputs, targets = batch("text", 0)
    sample = inputs[: ROWS // 2], targets[: ROWS // 2]

    def plan_with(memory: int) -> str:
        model = made("text")
        optimizer = optimizer_of(model)
        found = parallelize(model, optimizer, sample=sample, loss=loss_of, memory=memory)
        assert found.why.splitlines()[-1].startswith(f"{found.plan} fits into"), found.why
        assert found.needs[0].strategy.value == "dp"
        return found.plan

    assert plan_with(BIG) == "dp"
    model = made("text")
    parallel = parallelize(
        model, optimizer_of(model), sample=sample, loss=loss_of, memory=BIG, methods=("forward",)
    )
    sizes = {need.strategy.value: need.peak for need in parallel.needs}
    assert sizes["fsdp"] < sizes["dp"]
    room = next(need for need in parallel.needs if need.strategy.value == "fsdp")
    assert plan_with(round(1.25 * room.peak)) in ("fsdp", "dp+recompute")
    try:
        plan_with(1000)
    except flatout.UsageError as error:
        assert "no strategy fits" in str(error)
        assert "dp does not fit into 1000 B" in str(error)
    else:
        raise AssertionError("nothing fits into 1000 bytes")


def refused(reason: str, model: nn.Module, optimizer: Any, plan: Any, **options: Any) -> None:
    try:
        parallelize(model, optimizer, plan, **options)
    except flatout.UsageError as error:
        assert reason in str(error), str(error)
    else:
        raise AssertionError(f"not refused: {reason}")


def case_refused() -> None:
    model = made("text")
    used = optimizer_of(model)
    inputs, targets = batch("text", 0)
    loss_of(model(inputs), targets).backward()
    used.step()
    refused("has state already", model, used, "fsdp")
    free = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3))], lr=0.1)
    refused("1 parameters that are not the model's (of shape (3,))", model, free, "dp")
    refused("keeps parameters in `_params`", model, torch.optim.LBFGS(model.parameters()), "fsdp")
    refused("needs to know which modules", model, None, "tp")
    refused("needs several nodes", model, None, "hsdp")
    refused("pass sample=", model, None, "auto")
    refused("pass one of auto, dp", model, None, "zero")
    refused("are one parameter", model, None, "pp", sample=(inputs, targets), loss=loss_of)
    mixed = made("mlp")
    mixed.blocks[0].up.double()
    refused("parameters of torch.float32 and torch.float64", mixed, None, "fsdp")
    one = {"sample": batch("mlp", 0), "loss": loss_of}
    refused("too few for a pipeline", nn.Linear(6, 5), None, "pp", **one)


def case_pp() -> None:
    train("mlp", "pp", sample=batch("mlp", 0), loss=loss_of)


def case_tp() -> None:
    plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    train("mlp", "tp", tensor_plan=plan)


CASES: dict[str, Any] = {
    "auto": case_auto,
    "refused": case_refused,
    "pp": case_pp,
    "tp": case_tp,
    "llama-tp": lambda: train("llama", "tp"),
}


def run(case: str) -> None:
    if case in CASES:
        CASES[case]()
    else:
        kind, _, plan = case.partition("-")
        train(kind, plan)


def main() -> None:
    store, ranks, nodes, *cases = sys.argv[1:]
    os.environ["WORLD_SIZE"] = ranks
    os.environ["LOCAL_WORLD_SIZE"] = str(int(ranks) // int(nodes))
    torch.set_num_threads(1)
    rank = 0
    others = []
    for number in range(1, int(ranks)):
        other = os.fork()
        if not other:
            rank, others = number, []
            break
        others.append(other)
    try:
        world = int(ranks)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        for case in cases:
            run(case)
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.write(f"rank {rank} agrees\n")
    sys.stdout.flush()
    failed = any(os.waitpid(other, 0)[1] != 0 for other in others)
    os._exit(failed)  # gloo's threads abort the process now and then while it is taken down


if __name__ == "__main__":
    main()
