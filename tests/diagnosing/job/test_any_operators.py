"""Of whatever operators, kernels and calls: no check fails, and no saving exceeds the step."""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from enum import Enum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diagnosing.job.made import cpu_profile, ddp_profile, profile
from flatout.diagnosing import checks
from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.profile import Profile

MODULES = checks.JOB.every()
WORDS = (
    "x", "aten::mm", "aten::bmm", "aten::_softmax", "aten::copy_", "aten::add_", "aten::mean",
    "aten::rsqrt", "aten::fill_", "aten::_slow_conv2d_forward", "aten::cudnn_convolution",
    "aten::_log_softmax", "aten::_scaled_dot_product_attention_math", "aten::item", "aten::isnan",
    "Optimizer.step#AdamW.step", "cudaMalloc", "float", "double", "c10::BFloat16", "float32",
    "32x64, 64x128", "8x8x512x512", "8192x768, 768x50257", "1000, , 3x", "thermal", "power",
    "torch.save", "print", "Module()", "Optimizer()", "train.py:3", "x.contiguous()",
    "loss.backward(retain_graph=True)", "checkpoint(block, x)", "NVIDIA A100-SXM4-80GB", "cuda",
    "cpu", "CUDA_LAUNCH_BLOCKING=1", "f (a.py:3): size mismatch", "HtoD", "all_reduce", "AdamW",
    "matmul-fp32", "matmul-bf16", "matmul-cpu-fp32", "matmul-cpu-bf16", "conv-nchw-fp32",
)  # fmt: skip
NUMBERS = (0.0, 1e-9, 0.3, 1.0, 7.5, 120.0, 3e6, 1e12)
COUNTS = (0, 1, 2, 3, 161, 50257, 2**30, 2**36)


def like(hint: Any, draw: random.Random) -> Any:
    """A value of this type: the empty and the missing ones are likely."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return like(draw.choice(args), draw)
    if origin is tuple and args[-1] is Ellipsis:
        return tuple(like(args[0], draw) for _ in range(draw.randrange(4)))
    if origin is dict:
        return {like(args[0], draw): like(args[1], draw) for _ in range(draw.randrange(4))}
    if origin is tuple:
        return tuple(like(arg, draw) for arg in args)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return filled(hint, draw)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return draw.choice(list(hint))
    plain = {float: NUMBERS, int: COUNTS, bool: (False, True), str: WORDS, type(None): (None,)}
    return draw.choice(plain[hint])


def filled(cls: type[Any], draw: random.Random) -> Any:
    """One of these nouns; what has a default keeps it half of the time."""
    hints = typing.get_type_hints(cls)
    return cls(
        **{
            item.name: like(hints[item.name], draw)
            for item in dataclasses.fields(cls)
            if item.default is dataclasses.MISSING or draw.random() < 0.5
        }
    )


def anatomy(draw: random.Random) -> Anatomy:
    """A step whose parts add up, one of no length too."""
    kinds = draw.sample(list(Kind), draw.randrange(len(Kind)))
    parts = tuple(Part(kind, draw.choice(NUMBERS[:-2]), 12.0) for kind in kinds)
    device = draw.choice(["cpu", "cuda", "xpu", "mps"])
    return Anatomy(device, sum(part.ms for part in parts), parts, draw.choice(COUNTS))


def some_profile(draw: random.Random) -> Profile:
    """A healthy job of which some fields are any."""
    base = draw.choice([profile, cpu_profile, ddp_profile])()
    hints = typing.get_type_hints(Profile)
    values = {
        item.name: like(hints[item.name], draw)
        for item in dataclasses.fields(Profile)
        if item.name not in ("anatomy", "timeline") and draw.random() < 0.4
    }
    if draw.random() < 0.4:
        values["anatomy"] = anatomy(draw)
    return dataclasses.replace(base, **values)


@given(st.integers(0, 2**40))
def test_no_check_fails_and_no_saving_exceeds_the_step(seed: int) -> None:
    seen = some_profile(random.Random(seed))
    for module in MODULES:
        for found in module.check(seen):
            assert found.saves_ms is None or 0 <= found.saves_ms <= seen.anatomy.step_ms, found
            assert found.saves_ms is None or found.reason, found
            assert found.title, found
            assert found.evidence, found
            assert found.cure.text, found
