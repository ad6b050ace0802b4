"""What a replayed step costs the host beside the replay itself: `WholeStep.run`, on a CPU.

A stand-in for the device records nothing and replays nothing, so what is timed is the checks, the
copy of the batch into its buffers and the launch's Python. Models like GPT-2 and BERT-Large in
number of modules and tensors, with almost no arithmetic; two groups of weights, batches of two
tensors. The schedulers' rows are `scheduler.step()` alone, which runs between two replays.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import record
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from flatout_train.step.graph.whole_step import WholeStep

CPU = torch.device("cpu")
WIDTH, VOCABULARY, TOKENS = 8, 16, 4
BLOCKS = {"160_tensors": 13, "bert_large_388_tensors": 32}
GOAL_US = 30.0
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 1000),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10**6),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=10**6, cycle_momentum=False
    ),
}


class Block(nn.Module):
    """12 tensors in 6 modules, and three dropouts, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inwards, self.outwards = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop_1, self.drop_2, self.drop_3 = (nn.Dropout(0.0) for _ in range(3))
        self.heads = 2

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inwards(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.drop_2(self.outwards(self.drop_1(mixed)))
        return x + self.drop_3(self.narrow(self.wide(self.norm_2(x)).relu()))


class Network(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


class Recorder:
    """Records nothing: a replay costs one call."""

    def refusal(self) -> str | None:
        return None

    def rehearse(self, run: Callable[[], Any]) -> tuple[Any, str | None]:
        return run(), None

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        return run(), _nothing

    def renew(self) -> None:
        pass


def _nothing() -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=300, help="blocks of steps, each kind in turn"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs: dict[str, Callable[[], Any]] = {}
    for name, blocks in BLOCKS.items():
        runs[name] = replaying(Network(blocks))
    for name, make in SCHEDULERS.items():
        optimizer = groups(Network(1))
        runs[name] = make(optimizer).step
        optimizer.step()  # a scheduler warns where it comes first
    figures: dict[str, Any] = compare(runs, arguments.rounds, arguments.steps)
    figures["goal_us"] = {"160_tensors": GOAL_US}
    record.write("replay_host", figures)


def compare(runs: dict[str, Callable[[], Any]], rounds: int, steps: int) -> dict[str, Any]:
    """Microseconds of the thread for one call: the median block, and the tenth of the lowest."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for place in range(rounds + 2):
        for name in list(runs) if place % 2 else list(reversed(runs)):
            began = time.thread_time()
            for _ in range(steps):
                runs[name]()
            if place >= 2:
                times[name].append((time.thread_time() - began) / steps * 1e6)
    return {
        name: {
            "median_us": round(statistics.median(each), 1),
            "least_us": round(sorted(each)[len(each) // 10], 1),
        }
        for name, each in times.items()
    }


def groups(model: nn.Module) -> torch.optim.Optimizer:
    """Biases and norms are not decayed, as most programs have it."""
    decayed = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim <= 1]
    split = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(split, lr=1e-3, fused=True)


def replaying(model: nn.Module) -> Callable[[], Any]:
    """`WholeStep.run` of one batch, when it replays."""
    optimizer, loss_fn = groups(model), nn.CrossEntropyLoss()
    tokens = torch.randint(0, VOCABULARY, (2, TOKENS))

    def body(batch: Any) -> dict[str, Tensor]:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(batch[0]).flatten(0, 1), batch[1].flatten())
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    whole = WholeStep(body, model, optimizer, CPU, loss_fn=loss_fn, recorder=Recorder())

    def run() -> Any:
        return whole.run((tokens, tokens))

    for _ in range(5):
        if run() is None:
            body((tokens, tokens))
    if whole.reason != "recorded":
        raise SystemExit(f"it is not replayed: {whole.reason}")
    return run


if __name__ == "__main__":
    main()
