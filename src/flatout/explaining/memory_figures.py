"""The figures of an out-of-memory message, in every form that PyTorch has printed, and the cause
they show: really too big, fragmented, or held by other processes; and which figure is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flatout.nouns import units
from flatout.nouns.machine import Machine
from flatout.nouns.signature import Wording

GIB = 1 << 30
FULL = 0.85
"""Share of the device that this program's tensors hold if it is really too big."""
OTHERS = 0.25
"""Share that others hold if they are the cause."""
FRAGMENTED = 0.1
"""Share of reserved memory that is unused if it is fragmented."""
CONTEXT = GIB
"""The most that a CUDA context and libraries take besides what PyTorch reserves."""
_SIZE = r"([\d.]+ ?(?:[KMGT]i?B|bytes))"
_PATTERNS = {
    "wanted": rf"[Tt]ried to allocate {_SIZE}",
    "total": rf"(?:has a total capac\w+ of {_SIZE}|{_SIZE} total capacity|max allowed: {_SIZE})",
    "free": rf"(?:of which {_SIZE} is free|{_SIZE} free[;)])",
    "own": rf"this process has {_SIZE} memory in use",
    "allowed": rf"{_SIZE} allowed;",
    "allocated": rf"(?:{_SIZE} is allocated by PyTorch|{_SIZE} already allocated|"
    rf"MPS allocated: {_SIZE}|tensors? {_SIZE} allocated)",
    "reserved": rf"{_SIZE} reserved in total",
    "unused": rf"(?:{_SIZE} is reserved by PyTorch but unallocated|{_SIZE} cached)",
    "private": rf"with {_SIZE} allocated in private pools",
}
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_COMPILED = {name: re.compile(pattern) for name, pattern in _PATTERNS.items()}

BY_FIGURES = Wording("By the figures in the text: {figures}. ", "根据文中的数字：{figures}。")
TOO_BIG = Wording(
    "Tensors of this program hold {share} of the GPU: it really needs that much.",
    "本程序的张量占用了 GPU 的 {share}：确实需要这么多。",
)
SPLIT = Wording(
    "{unused} GiB is reserved and unused, more than the {wanted} GiB asked for: fragmented.",
    "已保留但未使用 {unused} GiB，超过请求的 {wanted} GiB：碎片化。",
)
ELSEWHERE = Wording(
    "Other processes hold {others} GiB: without them it would fit.",
    "其他进程占用 {others} GiB：没有它们就放得下。",
)
ALONE = Wording(
    "One tensor alone is larger than the GPU: a shape is wrong, or quadratic.",
    "单个张量就大于整块 GPU：形状有误或平方增长。",
)
UNDECIDED = Wording(
    "They cannot tell the model's own need from what is kept from earlier steps.",
    "这些数字不足以区分模型本身的需求与之前步骤保留的数据。",
)
MISSING = Wording(
    "The text lacks {names}: {how}.", "文中缺少 {names}：{how}。"
)  # fmt: skip
NAMES = {
    "others": Wording("what other processes hold", "其他进程的占用"),
    "unused": Wording("what is reserved and unused", "已保留未使用的量"),
    "total": Wording("the size of the GPU", "GPU 的容量"),
}
HOW = Wording(
    "run `nvidia-smi` beside it, and print torch.cuda.memory_summary() where it fails",
    "请同时运行 `nvidia-smi`，并在出错处打印 torch.cuda.memory_summary()",
)
BUSY = Wording(
    "On this machine GPU {index} is in use now by process {pids}.",
    "本机的 GPU {index} 目前被进程 {pids} 占用。",
)


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes as an out-of-memory message gives them; a field is None if it does not."""

    wanted: float | None = None
    total: float | None = None
    free: float | None = None
    own: float | None = None
    """Memory of this process, including what is not PyTorch's."""
    allocated: float | None = None
    reserved: float | None = None
    unused: float | None = None
    """Memory reserved but not allocated."""
    allowed: float | None = None
    """A limit that the program set itself."""
    private: float | None = None
    """Memory in the pools of CUDA graphs."""
    others: float | None = None
    """Memory of other processes, added up."""

    @property
    def others_at_least(self) -> float | None:
        """Bytes that other processes certainly hold."""
        if self.others is not None:
            return self.others
        if self.total is None or self.free is None:
            return None
        held = self.own
        if held is None and (self.reserved is not None or self.allocated is not None):
            reserved = self.reserved if self.reserved is not None else self.allocated
            held = (reserved or 0.0) + (self.unused or 0.0) + CONTEXT
        return None if held is None else max(0.0, self.total - self.free - held)

    @property
    def idle(self) -> float | None:
        """Bytes reserved but not allocated."""
        if self.unused is not None:
            return self.unused
        if self.reserved is None or self.allocated is None:
            return None
        return max(0.0, self.reserved - self.allocated)

    @property
    def larger_than_device(self) -> bool:
        return None not in (self.wanted, self.total) and (self.wanted or 0) > (self.total or 0)

    @property
    def held_by_others(self) -> bool:
        others = self.others_at_least
        return others is not None and self.total is not None and others > OTHERS * self.total

    @property
    def fragmented(self) -> bool:
        idle = self.idle
        if idle is None or self.wanted is None or self.allocated is None:
            return False
        enough = idle >= self.wanted and idle >= GIB / 4
        return enough and idle >= FRAGMENTED * (self.allocated + idle)

    @property
    def too_big(self) -> bool:
        limit = self.allowed or self.total
        return None not in (self.allocated, limit) and (self.allocated or 0) >= FULL * (limit or 1)


def read(text: str) -> MemoryFigures | None:
    """The figures of the first message in a text, or None if it has fewer than two."""
    one_line = " ".join(text.split())
    values: dict[str, float] = {}
    for name, pattern in _COMPILED.items():
        if (match := pattern.search(one_line)) is not None:
            size = units.size_bytes(next(group for group in match.groups() if group))
            if size is not None:
                values[name] = size
    if len(values) < 2:
        return None
    begin = one_line.find("ried to allocate")
    message = one_line[max(0, begin) :][:1500]
    others = {pid: units.size_bytes(size) or 0.0 for pid, size in _OTHER.findall(message)}
    return MemoryFigures(**values, others=sum(others.values()) if others else None)


def observations(text: str, machine: Machine | None) -> tuple[Wording, ...]:
    """What the figures of an out-of-memory message show, and which of them are missing."""
    figures = read(text)
    if figures is None:
        return ()
    said = _decided(figures)
    parts = {
        Wording("asked for", "请求"): figures.wanted,
        Wording("GPU", "GPU"): figures.total,
        Wording("free", "空闲"): figures.free,
        Wording("allocated", "已分配"): figures.allocated,
        Wording("reserved and unused", "已保留未使用"): figures.idle,
        Wording("other processes", "其他进程"): figures.others_at_least,
    }
    known = [(name, units.size(value)) for name, value in parts.items() if value is not None]
    english = ", ".join(f"{name.en} {value}" for name, value in known)
    shown = Wording(english, "，".join(f"{name.zh} {value}" for name, value in known))
    begin = Wording(BY_FIGURES.en.format(figures=shown.en), BY_FIGURES.zh.format(figures=shown.zh))
    decided = Wording(begin.en + said.en, begin.zh + said.zh)
    return (decided, *_beside(figures, machine))


def _beside(figures: MemoryFigures, machine: Machine | None) -> Iterator[Wording]:
    """Which figures are missing, and which GPUs of this machine are in use."""
    facts = {"others": figures.others_at_least, "unused": figures.idle, "total": figures.total}
    names = [NAMES[name] for name, value in facts.items() if value is None]
    if names:
        yield Wording(
            MISSING.en.format(names=" and ".join(name.en for name in names), how=HOW.en),
            MISSING.zh.format(names="、".join(name.zh for name in names), how=HOW.zh),
        )
    for gpu in (machine.gpus or ()) if machine is not None else ():
        if gpu.processes:
            pids = ", ".join(str(process.pid) for process in gpu.processes)
            yield BUSY.filled(index=gpu.index, pids=pids)


def _decided(figures: MemoryFigures) -> Wording:
    if figures.larger_than_device:
        return ALONE
    if figures.held_by_others:
        return ELSEWHERE.filled(others=_gib(figures.others_at_least))
    if figures.fragmented:
        return SPLIT.filled(unused=_gib(figures.idle), wanted=_gib(figures.wanted))
    if figures.too_big:
        share = (figures.allocated or 0.0) / (figures.allowed or figures.total or 1.0)
        return TOO_BIG.filled(share=f"{share:.0%}")
    return UNDECIDED


def _gib(value: float | None) -> str:
    return f"{(value or 0.0) / GIB:.2f}"
