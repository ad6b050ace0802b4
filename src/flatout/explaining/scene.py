"""What a run recorded about its crash, in words: which label or tensor, and memory over time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flatout.nouns.signature import Wording
from flatout.running.one.records import Processes
from flatout_agent import wire

GROWING = 1.15
"""Memory grows if it is this many times as large after the last step as after a quarter."""
STEADY = 0.6
"""Least share of readings above the previous one in growing memory."""
READINGS = 8
"""Fewest readings that say anything."""
LONG = 1.2
"""A batch with this many times the elements of the largest before it is a long one."""
SHOWN = 4
"""Most tensors of one frame that are shown."""
FRAMES = 2
"""Frames that are shown: the user's innermost, and the function of torch that failed."""
INSTALLED = re.compile(r".*(?:site|dist)-packages[/\\]")
"""The folder that a package is installed in."""
GIB = 1 << 30
MIB = 1 << 20
VALUE_FAMILIES = ("tensors", "autograd", "precision", "loader")
"""Families of errors that shapes, types and values of tensors explain."""
MISFITS = {
    "label": Wording(
        "Label {value} at position {position} of {name} ({shape}) is the first that does not fit: "
        "there are {limit} classes, so labels must be 0 to {last}. {count} of {values} do not fit.",
        "{name}（{shape}）位置 {position} 的标签 {value} 是第一个不合法的：共有 {limit} 个类别，"
        "标签必须在 0 到 {last} 之间。{values} 个中有 {count} 个不合法。",
    ),
    "index": Wording(
        "Index {value} at position {position} of {name} ({shape}) is the first that does not fit: "
        "the embedding has {limit} rows, so indices must be 0 to {last}. {count} of {values} do "
        "not fit.",
        "{name}（{shape}）位置 {position} 的索引 {value} 是第一个越界的：embedding 共 {limit} 行，"
        "索引必须在 0 到 {last} 之间。{values} 个中有 {count} 个越界。",
    ),
    "probability": Wording(
        "Value {value} at position {position} of {name} ({shape}) is the first outside 0 to 1; "
        "{count} of {values} are.",
        "{name}（{shape}）位置 {position} 的值 {value} 是第一个不在 0 到 1 之间的；"
        "{values} 个中共有 {count} 个。",
    ),
}
OF_SAMPLE = Wording(
    "It belongs to sample {sample} of the data set (batch {batch} of the epoch, counted from 0).",
    "它属于数据集的第 {sample} 个样本（本轮第 {batch} 个 batch，均从 0 计）。",
)
OF_BATCH = Wording(
    "It is in batch {batch} of the epoch, counted from 0, after {steps} complete steps.",
    "它在本轮第 {batch} 个 batch 中（从 0 计），此前已完成 {steps} 步。",
)
LOADING = Wording(
    "The data set was asked for sample {sample} (counted from 0) when it failed.",
    "出错时正在读取数据集的第 {sample} 个样本（从 0 计）。",
)
TENSORS = Wording("In {function} ({where}): {tensors}.", "在 {function}（{where}）中：{tensors}。")
GROWS = Wording(
    "Memory in use grew with the steps: {first} GiB after step {from_step}, {last} GiB after step "
    "{to_step}, {rate} MiB a step. Something of each step is kept: a loss or output in a list or a "
    "sum without .item() or .detach().",
    "内存占用随步数增长：第 {from_step} 步后 {first} GiB，第 {to_step} 步后 {last} GiB，"
    "每步 {rate} MiB。每一步都有数据被保留：列表或累加中的 loss/输出未用 .item() 或 .detach()。",
)
LEVEL = Wording(
    "Memory in use did not grow: {first} GiB after step {from_step}, {last} GiB after step "
    "{to_step}. It is no leak.",
    "内存占用没有增长：第 {from_step} 步后 {first} GiB，第 {to_step} 步后 {last} GiB。不是泄漏。",
)
LONG_BATCH = Wording(
    "The last batch was larger than any before: {last} elements, at most {most} until then "
    "({times}x). One long sample causes this: limit its length, or sort samples by length.",
    "最后一个 batch 比之前任何一个都大：{last} 个元素，此前最多 {most} 个（{times} 倍）。"
    "由一个过长的样本造成：请限制长度，或按长度分组。",
)
AT_FIRST = Wording(
    "No step was complete: it does not fit from the start.", "没有完成任何一步：一开始就放不下。"
)


@dataclass(frozen=True)
class CrashRecord:
    """What one process recorded about its end; a field is None if nothing was recorded."""

    scene: wire.CrashScene | None = None
    history: wire.HistorySeen | None = None
    steps: int = 0
    """Complete steps."""

    @property
    def grows(self) -> bool:
        """Whether memory in use kept growing."""
        readings = self.history.memory_bytes if self.history is not None else ()
        if len(readings) < READINGS:
            return False
        late = readings[len(readings) // 4 :]
        rises = sum(after > before for before, after in itertools.pairwise(late))
        return late[-1] > GROWING * late[0] and rises >= STEADY * (len(late) - 1)

    @property
    def long_batch(self) -> bool:
        """Whether the last batch was clearly larger than any before."""
        history = self.history
        if history is None or not history.batch_elements or not history.most_elements:
            return False
        return history.batch_elements > LONG * history.most_elements


def observations(record: CrashRecord, family: str, out_of_memory: bool) -> tuple[Wording, ...]:
    """What it adds to the explanation of an error of this family."""
    if out_of_memory:
        return tuple(_of_memory(record))
    return tuple(_of_values(record)) if family in VALUE_FAMILIES else tuple(_of_sample(record))


def _of_values(record: CrashRecord) -> Iterator[Wording]:
    scene = record.scene
    if scene is None:
        return
    if scene.misfit is not None:
        tensors = (tensor for frame in scene.frames for tensor in frame.tensors)
        shape = next((shown(seen) for seen in tensors if seen.name == scene.misfit.name), "")
        yield MISFITS[scene.misfit.kind].filled(
            value=f"{scene.misfit.value:g}",
            position=", ".join(map(str, scene.misfit.position)) or "0",
            name=scene.misfit.name,
            shape=shape,
            limit=f"{scene.misfit.limit:g}",
            last=f"{scene.misfit.limit - 1:g}",
            count=scene.misfit.count,
            values=scene.misfit.values,
        )
        history = record.history
        if history is None or history.batch is None:
            return
        size, misfit = history.batch_size or 0, scene.misfit
        place = misfit.position[0] if misfit.position and misfit.first_is_sample else size
        if history.in_order and place < size:
            sample = history.batch * size + place
            yield OF_SAMPLE.filled(sample=sample, batch=history.batch)
        else:
            yield OF_BATCH.filled(batch=history.batch, steps=record.steps)
    else:
        yield from _of_sample(record)
        own = [frame for frame in scene.frames if frame.own][:1]
        inner = [frame for frame in scene.frames if not frame.own][:1]
        for frame in (*inner, *own)[:FRAMES]:
            named = "; ".join(f"{tensor.name} {shown(tensor)}" for tensor in frame.tensors[:SHOWN])
            function = f"{frame.module}.{frame.function}" if frame.module else frame.function
            yield TENSORS.filled(
                function=function, where=INSTALLED.sub("", frame.where), tensors=named
            )


def _of_sample(record: CrashRecord) -> Iterator[Wording]:
    if record.scene is not None and record.scene.sample is not None:
        yield LOADING.filled(sample=record.scene.sample)


def shown(tensor: wire.TensorSeen) -> str:
    """A tensor in short: int64 [16] from 2 to 10."""
    text = f"{tensor.dtype} [{', '.join(map(str, tensor.shape))}]"
    if tensor.device != "cpu":
        text += f" {tensor.device}"
    if tensor.low is not None and tensor.high is not None:
        text += f" {tensor.low:.4g}..{tensor.high:.4g}"
    if tensor.nans:
        text += f" ({tensor.nans} NaN/Inf)"
    return text


def _of_memory(record: CrashRecord) -> Iterator[Wording]:
    history = record.history
    if history is None:
        return
    if record.long_batch:
        last, most = history.batch_elements or 0, history.most_elements or 1
        ratio = last / most
        yield LONG_BATCH.filled(
            last=last,
            most=most,
            times=f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}",
        )
    readings = history.memory_bytes
    if not readings:
        yield AT_FIRST
    elif len(readings) >= READINGS:
        at = len(readings) // 4
        first, last = history.steps[at], history.steps[-1]
        rate = (readings[-1] - readings[at]) / max(1, last - first) / MIB
        yield (GROWS if record.grows else LEVEL).filled(
            first=f"{readings[at] / GIB:.2f}",
            last=f"{readings[-1] / GIB:.2f}",
            from_step=first,
            to_step=last,
            rate=f"{rate:.3g}",
        )


def record_of(records: Iterable[tuple[int, wire.Record]]) -> CrashRecord | None:
    """The record of the process that says most about its crash, or None if none does."""
    known = [
        CrashRecord(process.scene, process.history, process.step_count)
        for process in Processes(records).all
        if process.crashes
    ]
    return next(
        (record for record in known if record.scene is not None and record.scene.frames),
        next((record for record in known if record.history is not None), None),
    )
