"""The host waits for the device in each step, and then the device waits for the host.

## What it sees

On an accelerator, lines of these kinds in each step, after which the device idles:

- a value is read: `loss.item()`, `float(loss)`, an accuracy as a Python number
- a small tensor is taken to the host: `.cpu()`, `.numpy()`, `.tolist()`; COPY007 reports large ones
- a tensor is printed, or logged: a logger, TensorBoard's `add_scalar`, an experiment tracker, a
  progress bar's `set_postfix`
- elements are selected by their values: `nonzero`, `masked_select`, `unique`, `repeat_interleave`,
  a boolean mask as an index
- the script waits by itself: `torch.cuda.synchronize()` (in a trace: cudaDeviceSynchronize)
- gradients are clipped with `error_if_nonfinite=True`, or their norm is read
- the gradient scaler of float16 reads whether a gradient was infinite: `scaler.step(optimizer)`
- a branch depends on a value: `if loss > limit`, `while mask.any()`, `torch.equal`,
  `assert torch.isfinite(x).all()`
- torch's memory cache is emptied, or a checkpoint is saved
- any other call that waits

## Why it matters

The host launches kernels ahead of the device. Before it can go on with a value, or with a result
whose size depends on values, it must wait until the device has computed everything up to it; then
the device has nothing left to do until the next launches arrive. torch.compile breaks its graph at
branches and masks, and CUDA graphs cannot be recorded with them.

## Cure

- Values: accumulate on the device (`running += loss.detach()`) and read the sum every N steps;
  print and log every N steps. Tensors: collect those of several steps and copy them together.
- Elements: keep the full size with `torch.where(mask, x, 0)`, or multiply with the mask and divide
  by its sum; give `repeat_interleave` its `output_size`.
- `synchronize()`: leave it out; measure with events, or around many steps.
- Clipping: `clip_grad_norm_(parameters, limit)` as it is needs no value on the host.
- Scaler: bfloat16 has float32's range and needs none; fused optimizers decide on the device.
- Branches: let the device decide (`torch.where(condition, a, b)`), and test for NaN every N steps
  or with `torch._assert_async`.
- `empty_cache()`: leave it out; torch reuses its cache. Against fragmentation:
  `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
- Checkpoints: every few hundred steps, in the background: `flatout.Checkpoint`, or
  `torch.distributed.checkpoint.async_save`.
- Others: `torch.cuda.set_sync_debug_mode("warn")` names each call that waits.

The gain: the idle time.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html
- https://docs.pytorch.org/docs/stable/generated/torch.where.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, savings, stalls
from flatout.diagnosing.job.stalls import Stall
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC001", severity=Severity.WARNING, since="0.2.0")
READS = re.compile(r"\.item\(\)|\bfloat\((\w+)\)")
MEAN_OF_MASKED = re.compile(r"(\w+)\[(\w+)\]\.mean\(\)")
SUM_OF_MASKED = re.compile(r"(\w+)\[(\w+)\]\.sum\(\)")
EVERY_50 = "if step % 50 == 0:"


def _summed(source: str) -> tuple[str, ...]:
    after = READS.sub(lambda match: f"{match[1]}.detach()" if match[1] else ".detach()", source)
    now = (source, after) if source else ("total += loss.item()", "total += loss.detach()")
    return (*now, EVERY_50, "    mean = (total / 50).item()")


def _collected(source: str) -> tuple[str, ...]:
    after = stalls.TO_HOST.sub(".detach(", source, count=1)
    after = after.replace(".detach().numpy()", ".detach()")
    now = (source, after) if source else ("kept.append(x.cpu())", "kept.append(x.detach())")
    return (*now, EVERY_50, "    values = torch.stack(kept).cpu()")


def _seldom(source: str) -> tuple[str, ...]:
    return (source, EVERY_50, f"    {source}")


def _in_full_size(source: str) -> tuple[str, ...]:
    after = MEAN_OF_MASKED.sub(r"(\1 * \2).sum() / \2.sum()", source)
    after = SUM_OF_MASKED.sub(r"(\1 * \2).sum()", after)
    if after == source:
        after = "kept = torch.where(mask, x, 0)  # in full size; divide by mask.sum() for means"
    return (source, after)


def _clipped(source: str) -> tuple[str, ...]:
    after = source.replace(", error_if_nonfinite=True", "")
    if after == source:
        after = "torch.nn.utils.clip_grad_norm_(model.parameters(), limit)"
    return (source, after)


def _unscaled(source: str) -> tuple[str, ...]:
    autocast = 'with torch.autocast("cuda", dtype=torch.bfloat16):  # around the forward'
    return (source, "optimizer.step()", autocast)


def _chosen(source: str) -> tuple[str, ...]:
    first, _, condition = source.partition(" ")
    if first == "assert":
        return _seldom(source)
    if first in ("if", "elif") and source.endswith(":"):
        return (source, f"if step % 50 == 0 and {condition.strip()}")
    return (source, "value = torch.where(condition, a, b)  # the device decides")


@dataclass(frozen=True)
class Wait:
    """What is told of one kind of calls for which the host waits."""

    title: str
    """{call}: the call's name; {chooser}: what selects elements."""
    cure: str
    changed: Callable[[str], tuple[str, ...]]
    """The line of the call -> that line, then what replaces it."""
    joint: str = ""
    """What joins the title and the line of the call; empty if the title is without it."""
    where: str | None = None
    """Where the lines to change are, if not at the call."""
    boosts: tuple[str, ...] = ()


FUSED = Wait(
    "the gradient scaler waits for the device in each step",
    "Let a fused optimizer decide on the device: fused=True.",
    lambda _: ("", "torch.optim.AdamW(parameters, ..., fused=True)"),
    where="where the optimizer is made",
    boosts=("fused-optimizer",),
)
NO_SCALER = Wait(
    FUSED.title, "Use bfloat16, which needs no scaler.", _unscaled, boosts=FUSED.boosts
)
"""Instead of FUSED where the device has bfloat16."""
WAITS: dict[Stall, Wait] = {
    Stall.ITEM: Wait(
        "a value is read from the device in each step",
        "Accumulate on the device and read the sum every 50 steps.",
        _summed,
        joint=" by ",
    ),
    Stall.HOST_COPY: Wait(
        "a tensor is taken to the host in each step",
        "Keep it on the device and copy the tensors of several steps together.",
        _collected,
        joint=" by ",
    ),
    Stall.PRINT: Wait("a tensor is printed in each step", "Print every 50 steps.", _seldom),
    Stall.LOGGING: Wait(
        "values from the device are logged in each step", "Log every 50 steps.", _seldom
    ),
    Stall.NONZERO: Wait(
        "the host waits for the number of elements that {chooser} selects",
        "Keep the full size and zero the rest with the mask.",
        _in_full_size,
    ),
    Stall.EXPLICIT: Wait(
        "the host waits for the whole device in each step",
        "Leave the call out; to measure, record events and read them after many steps.",
        lambda source: (source or "torch.cuda.synchronize()",),
    ),
    Stall.CLIPPING: Wait(
        "clipping the gradients waits for the device in each step",
        "Clip on the device and read no norm: clip_grad_norm_ without error_if_nonfinite.",
        _clipped,
    ),
    Stall.SCALER: FUSED,
    Stall.BRANCH: Wait(
        "a branch waits for a value on the device",
        "Let the device decide with torch.where, or look only every 50 steps.",
        _chosen,
        joint=": ",
    ),
    Stall.CACHE: Wait(
        "torch's memory cache is emptied in each step",
        "Leave the call out: torch reuses its cache.",
        lambda source: (source,),
    ),
    Stall.SAVING: Wait(
        "a checkpoint is saved in each step, and the device waits",
        "Save every 500 steps, in the background.",
        lambda source: (
            source,
            "if step % 500 == 0:",
            "    checkpoint.save(step)  # checkpoint = flatout.Checkpoint(folder, ...)",
        ),
    ),
    Stall.OTHER: Wait(
        "the host waits for the device in each step ({call})",
        "Let torch name the call that waits, and remove it from the step.",
        lambda _: ("", 'torch.cuda.set_sync_debug_mode("warn")  # before the loop'),
    ),
}


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line, and for each kind of calls without a known line."""
    has_bf16 = profile.job is not None and profile.job.bf16
    waits = {**WAITS, Stall.SCALER: NO_SCALER} if has_bf16 else WAITS
    large = {
        str(copy.where)
        for copy in copies.to_host(profile)
        if copy.bytes >= stalls.LARGE and copy.where is not None
    }
    for stall, wait in waits.items():
        for sync in stalls.by_line(profile, stall):
            if stall is not Stall.HOST_COPY or str(sync.where) not in large:
                yield from _line(profile, wait, sync)


def _line(profile: Profile, wait: Wait, sync: Sync) -> Iterator[Diagnosis]:
    saves = savings.within(profile, sync.idle_ms)
    if not savings.worth(profile, saves):
        return
    source = sync.where.source if sync.where is not None else ""
    idle = units.milliseconds(sync.idle_ms)
    yield Diagnosis(
        title=_title(wait, sync, source)[:100],
        evidence=f"{sync.name} {sync.calls:,.1f} times a step: the host waits "
        f"{units.milliseconds(sync.ms)}, then the device is idle for {idle}",
        cure=Cure(wait.cure, savings.lines(wait.where or sync.where, *wait.changed(source))),
        severity=savings.severity(profile, saves),
        where=str(sync.where) if sync.where is not None else None,
        boost=savings.boost(profile, *wait.boosts),
        saves_ms=saves,
        reason=f"the {units.milliseconds(saves)} of a step in which the device has nothing to do "
        "after these calls",
    )


def _title(wait: Wait, sync: Sync, source: str) -> str:
    name = sync.name.removeprefix("aten::").strip("_")
    chooser = "a boolean mask" if name.startswith(("index", "_index")) else name
    title = wait.title.format(call=sync.name, chooser=chooser)
    return f"{title}{wait.joint}{source}" if wait.joint and source else title
