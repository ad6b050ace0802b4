"""Calls in which the host waits for the device: the kind of each, and its cost."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re

from flatout.diagnosing.job import copies, savings
from flatout.nouns.profile import Place, Profile, Sync

LARGE = 2**20
"""Bytes to the host from which the copy costs more than the waiting."""
EACH_STEP = 0.3
"""Calls a step from which a call belongs to the step: one in three steps also counts."""


class Stall(enum.Enum):
    """What makes the host wait. Each call belongs to the first that fits."""

    CACHE = "cache"
    EXPLICIT = "explicit"
    CLIPPING = "clipping"
    SCALER = "scaler"
    SAVING = "saving"
    PRINT = "print"
    LOGGING = "logging"
    UPLOAD = "upload"
    """A blocking copy to the device, which the checks of copies report."""
    NONZERO = "nonzero"
    BRANCH = "branch"
    HOST_COPY = "host copy"
    ITEM = "item"
    OTHER = "other"


LOGS = re.compile(
    r"\blogg(er|ing)\.|\b(wandb|mlflow|neptune|comet_ml|run|experiment)\.log|\.log_metrics?\("
    r"|\badd_(scalar|scalars|histogram|image)\(|\.set_postfix\("
)
TO_HOST = re.compile(r"\.(cpu|numpy|tolist)\(|\.to\(\s*[\"']cpu|\.to\(torch\.device\([\"']cpu")
CLIPS = re.compile(r"clip_grad|\b(total_)?(grad_)?norm\b.*[<>]")
BRANCHES = re.compile(r"^(if|elif|while|assert)\b|\bif\b.*\belse\b")
SOURCES: tuple[tuple[Stall, re.Pattern[str]], ...] = (
    (Stall.CACHE, re.compile(r"empty_cache\(")),
    (Stall.EXPLICIT, re.compile(r"\bsynchronize\(")),
    (Stall.CLIPPING, CLIPS),
    (Stall.SCALER, re.compile(r"\bscaler\w*\.(step|update|unscale_)\(")),
    (Stall.SAVING, re.compile(r"\b(torch\.save|save_checkpoint|save_pretrained)\(")),
    (Stall.PRINT, re.compile(r"\bprint\(")),
    (Stall.LOGGING, LOGS),
)
"""Patterns of the line's text, which come before the call's name."""
READS = re.compile(r"\.item\(|\b(float|int)\(")
CHOOSES = re.compile(
    r"\.?(nonzero|masked_select|unique|argwhere|repeat_interleave)\(|\[\w*mask\w*\]"
)
COPIES = (
    "aten::to",
    "aten::_to_copy",
    "aten::copy_",
    "cudaMemcpyAsync",
    "hipMemcpyAsync",
    "cudaMemcpy",
    "hipMemcpyWithStream",
)
NAMES: tuple[tuple[Stall, tuple[str, ...]], ...] = (
    (
        Stall.NONZERO,
        (
            "aten::nonzero",
            "aten::nonzero_numpy",
            "aten::masked_select",
            "aten::index",
            "aten::index_put_",
            "aten::_index_put_impl_",
            "aten::unique",
            "aten::_unique2",
            "aten::unique_consecutive",
            "aten::repeat_interleave",
            "aten::bincount",
            "aten::argwhere",
            "aten::where",
        ),
    ),
    (Stall.BRANCH, ("aten::is_nonzero", "aten::equal", "aten::allclose")),
    (Stall.ITEM, ("aten::item", "aten::_local_scalar_dense")),
    (Stall.EXPLICIT, ("cudaDeviceSynchronize", "hipDeviceSynchronize")),
)


SEEN_AS = {
    "aten::item": ("Tensor.item", "Tensor.__float__", "Tensor.__int__"),
    "aten::_local_scalar_dense": ("Tensor.item", "Tensor.__float__", "Tensor.__int__"),
    "aten::is_nonzero": ("Tensor.__bool__",),
    "aten::nonzero": ("Tensor.nonzero",),
    "cudaDeviceSynchronize": ("torch.cuda.synchronize", "torch.cuda.empty_cache"),
}
"""A trace's call -> its names in the watched program."""


def kind(sync: Sync, uploads: frozenset[Place] = frozenset(), downloads: bool = True) -> Stall:
    """What makes the host wait here, by the line's text and by the name of the call.

    uploads: lines that copy to the device. downloads: whether anything is copied to the host.
    """
    source = sync.where.source if sync.where is not None else ""
    for stall, pattern in SOURCES:
        if pattern.search(source):
            return stall
    stall_by_name = next((stall for stall, names in NAMES if sync.name in names), None)
    if stall_by_name is Stall.ITEM and BRANCHES.search(source) and ".item(" not in source:
        return Stall.BRANCH
    if TO_HOST.search(source) and stall_by_name in (None, Stall.ITEM):
        return Stall.HOST_COPY
    if stall_by_name is not None:
        return stall_by_name
    if CHOOSES.search(source):
        return Stall.NONZERO
    if READS.search(source):
        return Stall.ITEM
    if sync.where in uploads or copies.MOVES.search(source) or copies.BUILDS.search(source):
        return Stall.UPLOAD
    if sync.name not in COPIES:
        return Stall.OTHER
    return Stall.HOST_COPY if downloads else Stall.UPLOAD


def uploads(profile: Profile) -> list[Sync]:
    """The waits of blocking copies to the device."""
    return of(profile, Stall.UPLOAD, each_step=0.0)


def of(profile: Profile, stall: Stall, each_step: float = EACH_STEP) -> list[Sync]:
    """The calls of this kind made in about each step, costliest first."""
    if not savings.accelerated(profile):
        return []  # on a CPU there is nothing to wait for
    to_device = frozenset(
        copy.where for copy in copies.to_device(profile) if copy.where is not None
    )
    downloads = bool(copies.to_host(profile)) or not profile.copies
    syncs = [
        sync
        for sync in map(functools.partial(_placed, profile), profile.syncs)
        if sync.calls >= each_step and kind(sync, to_device, downloads) is stall
    ]
    return sorted(syncs, key=lambda sync: -sync.idle_ms)


def by_line(profile: Profile, stall: Stall) -> list[Sync]:
    """The calls of each line as one Sync; calls without a known line also become one."""
    together: dict[Place | None, Sync] = {}
    for sync in of(profile, stall):
        old = together.get(sync.where)
        together[sync.where] = sync if old is None else _sum(old, sync)
    return list(together.values())


def _placed(profile: Profile, sync: Sync) -> Sync:
    """The Sync, with the one line that was seen making such a call if the trace has none."""
    if sync.where is not None or profile.seen is None:
        return sync
    names = SEEN_AS.get(sync.name, ())
    lines = {
        call.where
        for call in profile.seen.calls
        if call.name in names and call.where and call.calls >= EACH_STEP and call.detail != "cpu"
    }
    if len(lines) != 1:
        return sync
    file, _, line = lines.pop().rpartition(":")
    if not file or not line.isdecimal():
        return sync
    return dataclasses.replace(sync, where=Place(file, int(line)))


def _sum(first: Sync, second: Sync) -> Sync:
    return Sync(
        first.name,
        calls=first.calls + second.calls,
        ms=first.ms + second.ms,
        idle_ms=first.idle_ms + second.idle_ms,
        where=first.where,
    )
