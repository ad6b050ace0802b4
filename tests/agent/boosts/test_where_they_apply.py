"""What each boost answers from the facts of a job alone: None where it applies, else why not.

What the law asks of every answer is in tests/law/test_every_boost.py; what a boost finds in the
program itself, or in its environment, in the boost's own file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flatout_agent import boosts
from flatout_agent.wire import JobFacts, LoaderFacts, ModelFacts, OptimizerFacts

LOADER = LoaderFacts("Photos", False, 4, 100, 0, False, False, "fork", False)
FILES, ROWS = replace(LOADER, read_singly="it opens files"), replace(LOADER, read_singly="")
IN_MEMORY = replace(LOADER, dataset="TensorDataset")
MODEL = ModelFacts("Net", 1_000_000, "float32", "cpu", matmul=3)
BARE, DEEP = replace(MODEL, matmul=0), replace(MODEL, blocks=4)
IMAGES = replace(BARE, conv2d=2, input_shapes=("8x3x9x9",))
WORDS = replace(MODEL, embeddings=2)
ADAMW = OptimizerFacts("AdamW", True, 9, 2, "float32", None, None)
RMSPROP, LBFGS = replace(ADAMW, kind="RMSprop"), replace(ADAMW, kind="LBFGS")
SHAPES = tuple(f"8x3x{n}x{n}" for n in range(9))
CPU = JobFacts("2.13.0", "3.11.7", "linux", "cpu", cores=4, threads=4)
GPU = replace(CPU, device="cuda")


def models(*given: ModelFacts, **changes: Any) -> dict[str, Any]:
    return {"models": tuple(replace(each, **changes) for each in given)}


def loaders(*given: LoaderFacts, **changes: Any) -> dict[str, Any]:
    return {"loaders": tuple(replace(each, **changes) for each in given)}


def optimizer(given: OptimizerFacts, **changes: Any) -> dict[str, Any]:
    return {"optimizers": (replace(given, **changes),)}


WORKERS = {"workers": "auto", "prefetch_factor": 2}
Row = tuple[dict[str, Any], str | None] | tuple[dict[str, Any], str | None, dict[str, Any]]
TABLE: dict[str, tuple[JobFacts, list[Row]]] = {
    "batch-fetch": (replace(CPU, **loaders(ROWS)), [
        ({}, None),
        ({"wait_share": 0.4}, None),
        ({"wait_share": 0.004}, "only 0.4% of the step is waiting for data"),
        (loaders(), "no DataLoader was seen"),
        (loaders(FILES), "it opens files"),
        (loaders(FILES, ROWS), None),
    ]),
    "frozen-bf16": (replace(CPU, bf16=True, models=(MODEL,), frozen=(MODEL,)), [
        ({}, None),
        ({"bf16": False}, "emulated"),
        ({"frozen": ()}, "without being trained"),
        ({"frozen": (BARE,)}, "without being trained"),
        ({"frozen": (replace(MODEL, dtype="bfloat16"),)}, "without being trained"),
        ({"frozen": (replace(MODEL, compiled=True),)}, "without being trained"),
    ]),
    "bf16-autocast": (replace(CPU, bf16=True, **models(MODEL)), [
        ({}, None),
        ({"bf16": None}, None),
        ({"bf16": False}, "emulated"),
        ({"autocast": "bfloat16"}, "own autocast"),
        ({"scaler": True}, "scales its loss"),
        (models(MODEL, dtype="float64"), "float64"),
        (models(BARE), "multiplies"),
    ]),
    "bf16-residual": (replace(GPU, bf16=True, **models(WORDS)), [
        ({}, None),
        (models(), None),
        ({"autocast": "bfloat16", "bf16": False}, None),
        ({"autocast": "float16"}, "float16"),
        ({"scaler": True}, "scales"),
        ({"bf16": False}, "emulated"),
        (models(WORDS, dtype="bfloat16"), "bfloat16"),
        (models(MODEL), "no embedding"),
        (models(WORDS, matmul=0), "no embedding"),
    ]),
    "channels-last": (replace(CPU, **models(IMAGES)), [
        ({}, None),
        (models(BARE), "no 2-d"),
        (models(IMAGES, channels_last=True), "already"),
        (models(IMAGES, input_shapes=("8x128",)), "no 4-d"),
    ]),
    "clip-grad": (CPU, [({}, None), ({"device": "cuda"}, "on cuda")]),
    "compile": (replace(CPU, compiler=True, **models(MODEL)), [
        ({}, None, {"mode": "default"}),
        ({"compiler": False}, "C++ compiler", {"mode": "default"}),
        ({"compiler": False, "device": "cuda"}, "Triton", {"mode": "default"}),
        ({}, "CUDA graphs", {"mode": "reduce-overhead"}),
        ({"device": "cuda"}, None, {"mode": "reduce-overhead"}),
        ({"device": "cuda", **models(MODEL, input_shapes=SHAPES)}, "9 input shapes",
         {"mode": "reduce-overhead"}),
        ({"device": "cuda", **models(MODEL, MODEL)}, "several models", {"mode": "reduce-overhead"}),
        ({"device": "cuda", **models(MODEL, MODEL)}, "several models", {"mode": "max-autotune"}),
        ({"device": "cuda", **models(MODEL, MODEL)}, None, {"mode": "max-autotune-no-cudagraphs"}),
        ({"device": "cuda", **models(MODEL, MODEL)}, None, {"mode": "default"}),
        (models(MODEL, MODEL), None, {"mode": "max-autotune"}),
        ({"device": "cuda", "micro_steps": 4.0}, None, {"mode": "reduce-overhead"}),
        ({"micro_steps": 4.0}, None, {"mode": "max-autotune"}),
        (models(MODEL, compiled=True), "itself", {"mode": "default"}),
        (models(MODEL, wrapped="DataParallel"), "DataParallel", {"mode": "default"}),
        (models(DEEP), None, {"scope": "blocks", "mode": "default"}),
        (models(DEEP), "for the whole model", {"scope": "blocks", "mode": "max-autotune"}),
        (models(), None, {"scope": "blocks", "mode": "default"}),
        (models(MODEL), "mostly made of", {"scope": "blocks", "mode": "default"}),
        (models(MODEL, DEEP), None, {"scope": "blocks", "mode": "default"}),
        ({"torch": "2.4.1", **models(DEEP)}, "each block anew",
         {"scope": "blocks", "mode": "default"}),
        ({"compiler": False}, "C++ compiler", {"scope": "blocks", "mode": "default"}),
    ]),
    "cpu-bf16": (replace(CPU, bf16=True, **models(MODEL)), [
        ({}, None),
        ({"device": "cuda"}, "not on the CPU"),
        ({"bf16": False}, "emulated"),
        ({"matmul_precision": "medium"}, "itself"),
        ({"autocast": "bfloat16"}, "autocast"),
        (models(MODEL, dtype="float64"), "float64"),
        (models(BARE), "multiplies"),
    ]),
    "cpu-threads": (replace(CPU, cores=8, threads=8), [
        ({}, "8 threads already, on 8 usable cores", {"threads": "auto"}),
        ({}, None, {"threads": 0.5}),
        ({"threads": 64}, None, {"threads": "auto"}),
        ({"threads": 4}, "4 threads already", {"threads": 0.5}),
        ({"threads": 4}, None, {"threads": "auto"}),
        ({"threads": 3}, "chose 3 threads", {"threads": 0.5}),
        ({"threads": 1, "world_size": 4}, None, {"threads": "auto"}),
        ({"threads": 64, "cores": 1}, "the same as auto here (1)", {"threads": 0.5}),
        (loaders(LOADER, num_workers=2), None, {"threads": "auto"}),
        (loaders(LOADER, num_workers=2), "the same as auto here (6)", {"threads": 0.75}),
        ({"device": "cuda"}, "the model is on cuda", {"threads": "auto"}),
    ]),
    "cuda-graphs": (replace(GPU, step_s=0.005, **models(MODEL, input_shapes=("4x8",))), [
        ({}, None),
        ({"device": "cpu"}, "need a GPU"),
        (models(MODEL, compiled=True), "itself"),
        (models(MODEL, wrapped="DistributedDataParallel"), "Distributed"),
        (models(MODEL, has_hooks=True), "hooks"),
        (models(MODEL, input_shapes=("4x8", "5x8")), "2 input shapes"),
    ]),
    "cudnn-benchmark": (replace(GPU, **models(IMAGES)), [
        ({}, None),
        ({"device": "cpu"}, "needs a GPU"),
        ({"deterministic": True}, "deterministic"),
        ({"cudnn_benchmark": True}, "itself"),
        (models(BARE), "no 2-d"),
        (models(IMAGES, input_shapes=SHAPES), "9 input shapes"),
    ]),
    "fast-dropout": (replace(CPU, **models(MODEL, random_forward=True)), [
        ({}, None),
        ({"step_s": 0.05, "shares": {"dropout": 0.01}}, None),
        ({"step_s": 0.05, "shares": {"dropout": 0.004}}, "masks take 0.4% of the step"),
        (models(), None),
        ({"device": "cuda"}, "on cuda"),
        (models(MODEL), "no random numbers"),
        (models(MODEL, random_forward=True, compiled=True), "compiled"),
    ]),
    "fp16-autocast": (replace(GPU, capability=(7, 5), bf16=False, **models(MODEL)), [
        ({}, None),
        ({"device": "cpu"}, "needs a GPU"),
        ({"bf16": True}, "native bfloat16"),
        ({"capability": (6, 1)}, "Tensor Cores"),
        ({"autocast": "float16"}, "own autocast"),
        ({"scaler": True}, "itself"),
        (models(BARE, dtype="float16"), "float16"),
    ]),
    "fused-loss": (CPU, [({}, None), ({"device": "cuda"}, "on cuda")]),
    "fused-optimizer": (replace(CPU, **optimizer(ADAMW)), [
        ({}, None),
        ({"device": "cuda"}, None),
        (optimizer(RMSPROP), None),
        ({"device": "cuda", **optimizer(RMSPROP)}, "default"),
        (optimizer(LBFGS), "neither"),
        ({"optimizers": (LBFGS, ADAMW)}, None),
        (optimizer(ADAMW, fused=True), "itself"),
        (optimizer(ADAMW, from_torch=False), "not one of"),
    ]),
    "gc-pause": (CPU, [
        ({}, None),
        ({"gc_enabled": False}, "the script has switched the garbage collector off"),
    ]),
    "image-cache": (replace(CPU, wait_share=0.5, **loaders(LOADER)), [
        ({}, None),
        ({"wait_share": 0.01}, "only 1.0% of the step is loading data"),
        ({"wait_share": 0.01, "workers_share": 0.3}, None),
        ({"system": "darwin", "device": "mps"}, "Linux"),
        (loaders(), "no DataLoader"),
        (loaders(LOADER, num_workers=2, start_method="spawn", main_guard=True), "not forked"),
        (loaders(IN_MEMORY), "in memory"),
    ]),
    "loader-pin-memory": (replace(GPU, **loaders(LOADER)), [
        ({}, None),
        (loaders(replace(LOADER, pin_memory=True), LOADER), None),
        (loaders(LOADER, pin_memory=True), "pins its batches already"),
        (loaders(), "no DataLoader"),
        ({"device": "cpu"}, "the model is on cpu"),
    ]),
    "loader-workers": (replace(CPU, **loaders(LOADER)), [
        ({}, None, WORKERS),
        ({"wait_share": 0.2}, None, WORKERS),
        ({"wait_share": 0.02}, "only 2.0% of the step is waiting for data", WORKERS),
        (loaders(), "no DataLoader", WORKERS),
        ({"cores": 1}, "1 usable core", WORKERS),
        ({"world_size": 4}, "1 usable core", WORKERS),
        (loaders(LOADER, num_workers=3), "already has 3 workers", WORKERS),
        (loaders(LOADER, iterable=True), "IterableDataset", WORKERS),
        (loaders(LOADER, batches=7), "only 7 batches", WORKERS),
        (loaders(LOADER, batches=None), None, WORKERS),
        (loaders(LOADER, start_method="spawn", main_guard=None), "not a script file", WORKERS),
        (loaders(LOADER, start_method="forkserver"), "outside of", WORKERS),
        (loaders(LOADER, start_method="spawn", main_guard=True), None, WORKERS),
    ]),
    "sample-cache": (replace(CPU, **loaders(LOADER)), [
        ({}, None),
        ({"wait_share": 0.4}, None),
        ({"wait_share": 0.05}, "only 5.0% of the step is loading data"),
        (loaders(), "no DataLoader was seen"),
        (loaders(IN_MEMORY), "the samples are in memory already"),
        (loaders(LOADER, iterable=True), "an IterableDataset: its samples have no index"),
        (loaders(LOADER, num_workers=2), None),
        (loaders(LOADER, num_workers=2, start_method="spawn"), "not forked"),
        (loaders(replace(LOADER, num_workers=2, start_method="spawn"), LOADER), None),
    ]),
    "indexed-rows": (CPU, [
        ({}, None),
        ({"device": "cuda"}, "not on the CPU"),
        (models(MODEL, compiled=True), "the model is compiled"),
    ]),
    "slice-gradients": (CPU, [
        ({}, None),
        ({"device": "cuda"}, "not on the CPU"),
        (models(MODEL, compiled=True), "the model is compiled"),
    ]),
    "sparse-matmul": (CPU, [
        ({}, None),
        ({"device": "cuda"}, "not on the CPU"),
        (models(MODEL, compiled=True), "the model is compiled"),
    ]),
    "packed-sequences": (replace(CPU, **models(MODEL, recurrent=1)), [
        ({}, None),
        (models(MODEL), "no nn.LSTM or nn.GRU"),
        ({"device": "cuda"}, "not on the CPU"),
        (models(MODEL, recurrent=1, compiled=True), "the model is compiled"),
    ]),
    "trim-padding": (replace(CPU, **models(MODEL, padded=0.5)), [
        ({}, None),
        (models(MODEL, padded=0.01), "have little padding"),
        (models(MODEL, padded=0.5, compiled=True), "the model is compiled"),
        ({"world_size": 2}, "several ranks train the model"),
    ]),
    "tf32": (replace(GPU, capability=(8, 0), **models(MODEL)), [
        ({}, None),
        ({"device": "cpu"}, "NVIDIA"),
        ({"hip": True}, "NVIDIA"),
        ({"capability": (7, 5)}, "7.5"),
        ({"matmul_precision": "high"}, "itself"),
        (models(MODEL, dtype="bfloat16"), "bfloat16"),
        (models(IMAGES), "by default"),
    ]),
}  # fmt: skip
OF_THE_ENVIRONMENT = {"allocator"}


@pytest.mark.parametrize("boost_id", TABLE)
def test_where_it_applies(boost_id: str) -> None:
    facts, rows = TABLE[boost_id]
    applies = boosts.load(boost_id).applies
    for changes, reason, *params in rows:
        said = applies(replace(facts, **changes), params[0] if params else {})
        assert said is None if reason is None else reason in (said or ""), (changes, said)


def test_every_boost_is_here_or_asks_its_environment() -> None:
    assert set(TABLE) | OF_THE_ENVIRONMENT == set(boosts.names())
