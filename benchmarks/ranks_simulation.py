"""A MODEL, not a measurement: what data-parallel training costs on 8, 64 and 512 GPUs.

`flatout.nouns.scaling` is fed with published figures: the throughput of one A100, the bus bandwidth
that users of nccl-tests report inside a DGX A100 and between such nodes, and data sheets. Each has
its source beside it. Where the same source also publishes the throughput of many GPUs, the model is
held against it (`check`).

Two ways to use more GPUs: `same_batch` shares the usual batch of that training among them (one GPU
alone accumulates it in micro-batches), as `flatout run --gpus` does; `same_rows` gives each GPU one
micro-batch, as `--scale-batch` does. Loading is not in the model: it is taken to keep up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import record

from flatout.nouns import scaling
from flatout.nouns.scaling import Cluster, Link, Rehearsal

GPUS = (8, 64, 512)
NVLINK = Link(232.5, 3e-6)
LINKS = {
    "InfiniBand, 4 x 200 Gb/s a node": Link(86.0, 10e-6),
    "InfiniBand, 8 x 200 Gb/s a node": Link(172.0, 10e-6),
    "Ethernet, 100 Gb/s a node": Link(10.0, 30e-6),
    "Ethernet, 25 Gb/s a node": Link(2.5, 30e-6),
}
SOURCES = {
    "NVLink bus bandwidth, 232.5 GB/s, 8 A100": "https://github.com/NVIDIA/nccl-tests/issues/175",
    "between nodes, 86 GB/s of 4 x 200 Gb/s": "https://github.com/NVIDIA/nccl/issues/1048",
    "8 x 200 Gb/s": "assumed: twice that of four; a DGX A100 has eight such ports",
    "Ethernet": "assumed: 80 % of the nominal rate",
    "latency of a hop": "assumed: 3 us over NVLink, 10 us over InfiniBand, 30 us over Ethernet",
    "share of the backward pass": "assumed: two thirds of the computing",
    "time that does not shrink with the rows": "assumed, see each model",
}


@dataclass(frozen=True)
class Model:
    """One model on one A100, as published."""

    rows_per_s: float
    micro_rows: int
    """Of one micro-batch."""
    batch: int
    """Rows of a step of the usual training."""
    parameters: float
    gradient_width: int
    """Bytes of one gradient as it is sent."""
    floor_s: float
    """Of a micro-batch, whatever its rows: launches and the optimizer. Assumed."""
    source: str
    published: tuple[tuple[int, int, float], ...] = ()
    """GPUs, rows of each in one exchange, and rows a second of all of them."""


DEEP_LEARNING_EXAMPLES = "https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch"
MODELS = {
    "ResNet-50": Model(
        rows_per_s=2470,
        micro_rows=256,
        batch=2048,
        parameters=25.6e6,
        gradient_width=4,
        floor_s=0.010,
        source=f"{DEEP_LEARNING_EXAMPLES}/Classification/ConvNets/resnet50v1.5 (DGX A100, mixed "
        "precision, batch 256 on each GPU)",
        published=((8, 256, 16621),),
    ),
    "GPT-2 (124M, 1024 tokens)": Model(
        rows_per_s=12 / 0.135,
        micro_rows=12,
        batch=480,
        parameters=124.4e6,
        gradient_width=4,
        floor_s=0.012,
        source="https://github.com/karpathy/nanoGPT (135 ms for 12 x 1024 tokens, compiled)",
    ),
    "BERT-Large (128 tokens)": Model(
        rows_per_s=580,
        micro_rows=256,
        batch=65536,
        parameters=336e6,
        gradient_width=2,
        floor_s=0.020,
        source=f"{DEEP_LEARNING_EXAMPLES}/LanguageModeling/BERT (DGX A100, phase 1, mixed "
        "precision, batch 65,536)",
        published=((8, 8192, 4591), (64, 1024, 35774), (128, 512, 70555)),
    ),
}


def rehearsal(model: Model, rows: float) -> Rehearsal:
    """One GPU's step with so many rows; only its last backward pass has an exchange beside it."""
    per_row_s = 1 / model.rows_per_s - model.floor_s / model.micro_rows
    micro_batches = math.ceil(rows / model.micro_rows)
    return Rehearsal(
        outside_s=micro_batches * model.floor_s,
        region_s=rows * per_row_s,
        backward_s=2 / 3 * per_row_s * min(rows, model.micro_rows),
        gradient_bytes=model.parameters * model.gradient_width,
    )


def row(model: Model, gpus: int, link: Link, rows: float) -> dict[str, Any]:
    """So many rows on each GPU, by one GPU that takes all of them alone."""
    if rows < 2:
        return {"refused": "fewer than two rows for each GPU"}
    part = rehearsal(model, rows)
    found = scaling.predicted(part, gpus, Cluster(8, NVLINK, link))
    return {
        "step_ms": round(1000 * found.step_s, 2),
        "exchange_ms": round(1000 * found.exchange_s, 2),
        "exposed_ms": round(1000 * found.exposed_s, 2),
        "efficiency": round(scaling.efficiency(gpus * rows / model.rows_per_s, found), 3),
        "limit": limit(part, found),
    }


def limit(part: Rehearsal, found: scaling.Prediction) -> str:
    """What most of the step's time beyond its rows goes to."""
    costs = {
        "exchange": found.exposed_s - min(found.exposed_s, found.latency_s),
        "latency": min(found.exposed_s, found.latency_s),
        "what does not shrink with the rows": part.outside_s,
    }
    name, most_s = max(costs.items(), key=lambda cost: cost[1])
    return name if most_s > 0.1 * found.step_s else "none above 10 %"


def breaks(model: Model, link: Link, scaled: bool) -> int | None:
    """The first power of two of GPUs at which less than half of them is used, or there are too few
    rows; None: up to 4096.
    """
    for gpus in (2**power for power in range(1, 13)):
        rows = model.micro_rows if scaled else model.batch / gpus
        if row(model, gpus, link, rows).get("efficiency", 0.0) < 0.5:
            return gpus
    return None


def checked(model: Model) -> list[dict[str, Any]]:
    """The model's answer beside what was published of many GPUs."""
    link = LINKS["InfiniBand, 8 x 200 Gb/s a node"]
    answers = []
    for gpus, rows, published in model.published:
        found = scaling.predicted(rehearsal(model, rows), gpus, Cluster(8, NVLINK, link))
        predicted = gpus * rows / found.step_s
        answers.append(
            {
                "gpus": gpus,
                "rows_of_each": rows,
                "published_rows_per_s": published,
                "predicted_rows_per_s": round(predicted),
                "predicted_by_published": round(predicted / published, 3),
            }
        )
    return answers


def simulated() -> dict[str, Any]:
    """All models over all links."""
    figures: dict[str, Any] = {"model": True, "measured": False, "sources": SOURCES, "jobs": {}}
    for name, model in MODELS.items():
        job: dict[str, Any] = {"source": model.source, "check": checked(model), "links": {}}
        for title, link in LINKS.items():
            job["links"][title] = {
                "same_batch": {
                    str(gpus): row(model, gpus, link, model.batch / gpus) for gpus in GPUS
                },
                "same_rows": {str(gpus): row(model, gpus, link, model.micro_rows) for gpus in GPUS},
                "half_used_from": {
                    "same_batch": breaks(model, link, scaled=False),
                    "same_rows": breaks(model, link, scaled=True),
                },
            }
        figures["jobs"][name] = job
    return figures


if __name__ == "__main__":
    record.write("ranks_simulation", simulated())
