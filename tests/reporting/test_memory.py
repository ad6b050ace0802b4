"""What `flatout memory` prints: 80 columns, each part, and the strategy that fits."""

from __future__ import annotations

import io
import json

from rich.console import Console

from flatout.nouns.memory_fit import MemoryFit, StrategyFit
from flatout.reporting import memory

GIB = 2**30


def strategy(name: str, peak: int, fits: bool) -> StrategyFit:
    return StrategyFit(
        name,
        32,
        parameters_bytes=GIB,
        gradients_bytes=GIB,
        state_bytes=2 * GIB,
        activations_bytes=peak,
        peak_bytes=peak,
        margin_bytes=GIB,
        fits=fits,
    )


FIT = MemoryFit(
    command=("python", "train.py"),
    model="Net",
    optimizer="AdamW",
    measured_on="cpu",
    measured_rows=(64, 128),
    batch_rows=256,
    parameters_bytes=10 * GIB,
    buffers_bytes=0,
    gradients_bytes=10 * GIB,
    state_bytes=20 * GIB,
    activations_fixed_bytes=GIB,
    activations_row_bytes=GIB // 4,
    activations_bytes=65 * GIB,
    update_bytes=0,
    peak_bytes=106 * GIB,
    devices=8,
    nodes=1,
    memory_bytes=80 * GIB,
    strategies=(strategy("dp", 90 * GIB, False), strategy("fsdp+recompute", 20 * GIB, True)),
    chosen="fsdp+recompute",
    notes=("activations were measured at one batch size",),
    run_folder="run",
    wall_s=3.0,
)


def shown(fit: MemoryFit) -> str:
    console = Console(file=io.StringIO(), width=80)
    memory.show_fit(fit, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines()[:-1])) <= 80
    return text


def test_what_fits() -> None:
    text = " ".join(shown(FIT).split())
    assert "activations 65 GiB 1.0 GiB + 256 MiB for each sample" in text
    assert "8 of 80 GiB; the batch is divided among them" in text
    assert "verdict fits with fsdp+recompute: weights, gradients" in text
    assert "next torch.distributed.fsdp.fully_shard(...) of each block" in text
    assert "next torch.utils.checkpoint.checkpoint(block, x" in text
    assert "note activations were measured at one batch size" in text


def test_the_document() -> None:
    found = json.loads(json.dumps(memory.document(FIT)))
    assert (found["schema"], found["fits"]) == ("flatout.memory/1", True)
    assert found["strategies"][1]["peak_bytes"] == 20 * GIB
