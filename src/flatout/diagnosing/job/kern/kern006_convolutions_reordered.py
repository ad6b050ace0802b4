"""Convolutions get channels-first images and reorder them around each kernel.

## What it sees

2-d convolutions of a model that is not in channels-last, with the reordering kernels around them
(nchwToNhwc), or measured ceilings by which this machine convolves faster in channels-last.

## Why it matters

Tensor cores and oneDNN compute in blocks of channels. In the usual order (NCHW) each convolution
reorders its input and its output; in channels-last (NHWC) it need not.

## Cure

`.to(memory_format=torch.channels_last)` for the model once and for each batch, or the boost
channels-last. Shapes and results stay the same; a `.view()` that needs the usual order must
become a `.reshape()`.

## References

- https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
- https://uxlfoundation.github.io/oneDNN/dev_guide_understanding_memory_formats.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.diagnosing.job.kern import products
from flatout.nouns import amdahl, units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="KERN006", severity=Severity.WARNING, since="0.2.0")
REORDERING = re.compile(r"(?i)nchw_?to_?nhwc|nhwc_?to_?nchw")
CAUTIOUS_CPU = 1.15
"""Speed-up of convolutions with oneDNN, if no ceilings were measured."""
DTYPES = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all convolutions."""
    convolutions = [
        operator
        for operator in operators.products(profile)
        if operators.CONVOLVES.fullmatch(operator.name)
        and any(len(tensor) == 4 for tensor in operators.inputs(operator))
    ]
    if not convolutions or _channels_last(profile):
        return
    moving = [kernel for kernel in profile.kernels if REORDERING.search(kernel.name)]
    reordering = sum(kernel.ms for kernel in moving)
    took = operators.total(profile, convolutions)
    timed = products.again(profile, convolutions, "channels-last")
    ratio, source = timed or _ratio(profile, convolutions)
    saved = amdahl.saved(max(took - reordering, 0.0), ratio) + reordering
    saving = device_time.of_device(
        profile,
        saved,
        f"reordering kernels take {units.milliseconds(reordering)}; convolutions take "
        f"{units.milliseconds(took)} of the step; {source}: {units.milliseconds(saved)} less",
    )
    if not saving.worth:
        return
    names = ", ".join(
        sorted({f"{kernel.name[:60]} {units.milliseconds(kernel.ms)}" for kernel in moving})
    )
    model = profile.seen.model_where if profile.seen is not None else None
    yield Diagnosis(
        title=f"channels-first convolutions: {units.milliseconds(took)} of the step",
        evidence="; ".join(filter(None, (operators.evidence(profile, convolutions), names))),
        cure=Cure("Convert the model once, before training, and each batch.", _lines(model)),
        severity=saving.severity,
        where=model or operators.where(profile, convolutions),
        boost=savings.boost(profile, "channels-last"),
        saves_ms=saving.ms,
        reason=saving.reason,
        uncertainty=products.TIMED if timed else None,
    )


def _lines(model: str | None) -> tuple[str, ...]:
    batch = "output = model(x.to(memory_format=torch.channels_last))"
    return (
        *savings.lines(None, "", "model = model.to(memory_format=torch.channels_last)"),
        *savings.lines(model, "output = model(x)", batch),
    )


def _channels_last(profile: Profile) -> bool:
    """Whether it is channels-last already, or unknown and no reordering was seen."""
    if profile.job is None or not profile.job.models:
        return not any(REORDERING.search(kernel.name) for kernel in profile.kernels)
    models = [model for model in profile.job.models if model.conv2d]
    return all(model.channels_last for model in models)


def _ratio(profile: Profile, convolutions: list[Operator]) -> tuple[float, str]:
    dtypes = [dtype for convolution in convolutions for dtype in convolution.dtypes]
    name = next((DTYPES[dtype] for dtype in dtypes if dtype in DTYPES), None)
    first, last = (
        profile.ceiling(f"{operators.convolution_ceilings(profile, layout)}-{name}")
        for layout in ("nchw", "nhwc")
    )
    if first and last:
        ratio = max(last / first, 1.0)
        words = f"this machine convolves at {first:.3g} TFLOP/s in NCHW and {last:.3g} in NHWC"
        return ratio, f"{words} ({name})"
    if not savings.accelerated(profile) and name == "fp32":
        words = f"a cautious {units.ratio(CAUTIOUS_CPU)} with oneDNN, no ceilings were measured"
        return CAUTIOUS_CPU, words
    return 1.0, "only the reordering is counted"
