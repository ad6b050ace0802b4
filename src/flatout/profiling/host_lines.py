"""Find the user's lines that take the host's time, from sampled stacks.

A stack shows only Python's frames. Whether a line at the top of a stack is in a torch operator or
in Python is known from the recording, which has each line's operators and their times.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flatout.nouns.host_time import HostKind, HostLine, HostStack, HostThread, HostTime
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator
from flatout_agent import wire

TORCH = "torch"
CALL_MS = 0.004
"""Time of Python's call into torch around each operator, which the recording omits."""
MOSTLY = 0.5
"""If operators take at least this share of a line's own time, all of it counts as theirs: the rest
is the cost of calling them, which the recording does not show."""
BLOCKED_SHARE = 0.5
"""Least share of a stack's time without CPU use at which its idle time is waiting."""
ENTERS_LOADER = "_BaseDataLoaderIter.__next__"
ENTERS_MODULE = "Module._call_impl"
ENTERS_OPTIMIZER = "Optimizer.profile_hook_step"
STEP = "step"
"""The function of an optimizer that updates weights."""
CLOSURE = "closure"
"""Name of the function that an optimizer's step calls for gradients."""
GENERATED = "python"
"""Package of frames in generated code."""
STANDARD = sys.stdlib_module_names | {GENERATED}
"""Packages of frames in Python's library and in generated code."""
OVERRIDES = "__torch_"
"""Prefix of the functions of a tensor type that torch calls; they are not a closure."""
FORWARD = "forward"
"""The only function of a module that is not a hook."""
FORMATS = "torch/_tensor_str.py"
"""Where torch turns tensors into text."""
WITHIN_TORCH = {"torch/utils/tensorboard/": "tensorboard"}
"""Folders in torch that belong to another package."""
NAME = re.compile(r"\w+(?=[.(])")
CALL = re.compile(r"[\w.]+(?=\()")
EXPRESSION = 48
"""Characters of an expression that are shown."""
FLAME_STACKS = 250
Flame = tuple[str, HostKind]
"""A frame of a flame graph: its text and the kind of its code."""

Source = Callable[[str, int], str]
"""From a file, as reports name it, and a line to the line's text; empty if unknown."""
Aliases = Callable[[str], Mapping[str, str]]
"""From a file, as reports name it, to its imported names: np -> numpy."""
Steps = tuple[int, ...] | None
"""As in HostLine."""


@dataclass(frozen=True)
class _Sample:
    """One stack with its frames."""

    frames: tuple[wire.FrameSeen, ...]
    deepest: int
    """Index of the deepest frame of the user's."""
    ms: float
    idle_ms: float
    samples: int
    steps: Steps = None

    @property
    def own(self) -> wire.FrameSeen:
        return self.frames[self.deepest]

    @property
    def callees(self) -> tuple[wire.FrameSeen, ...]:
        return self.frames[self.deepest + 1 :]

    def enters(self, function: str) -> bool:
        return any(frame.package == TORCH and function in frame.function for frame in self.frames)


def host_time(
    host: wire.HostSeen,
    operators: Sequence[Operator],
    source: Source,
    aliases: Aliases,
) -> HostTime:
    """The host's time by line. operators: the recording's operators with their lines."""
    samples = [sample for stack in host.stacks if (sample := _sample(host, stack)) is not None]
    workers = [
        sample for stack in host.worker_stacks if (sample := _sample(host, stack)) is not None
    ]
    torch_share = _torch_shares(samples, operators)
    # Named calls of the user's own functions, whose code has a frame of its own.
    pairs = {
        (frame, _last(callee.function))
        for sample in samples
        for frame, callee in itertools.pairwise(sample.frames[: sample.deepest + 1])
        if not frame.package and not callee.package
    }
    called = {frame: CALL.match(_text(frame, source)) for frame, _ in pairs}
    returning = {
        frame
        for frame, function in pairs
        if (_last(name[0]) if (name := called[frame]) else "") == function
    }

    def lines_of(sample: _Sample) -> Iterable[tuple[HostLine, float]]:
        if _frees(sample, torch_share, returning, source):
            return ((_line(sample, source), sample.ms),)
        return _lines(sample, torch_share, source, aliases)

    # The other threads, with the frame that takes most of their time.
    by_thread: dict[str, dict[wire.FrameSeen, float]] = defaultdict(lambda: defaultdict(float))
    for stack in host.stacks:
        if stack.thread and stack.frames:
            frames = [host.frames[number] for number in stack.frames]
            own = next((frame for frame in reversed(frames) if not frame.package), frames[-1])
            by_thread[stack.thread][own] += 1000 * stack.s
    threads = []
    for thread_name, frame_ms in by_thread.items():
        frame = max(frame_ms, key=lambda frame: frame_ms[frame])
        place = None if frame.package else _place(frame, source)
        threads.append(HostThread(thread_name, sum(frame_ms.values()), place, frame.package))
    return HostTime(
        steps=host.steps,
        step_ms=1000 * host.step_s,
        lines=_summed(samples, lines_of),
        worker_lines=_summed(workers, lines_of),
        worker_idle_ms=None if host.worker_idle_s is None else 1000 * host.worker_idle_s,
        stacks=_flames(host, lines_of),
        threads=tuple(sorted(threads, key=lambda thread: -thread.cpu_ms)),
        gc_ms=1000 * host.gc_s,
        queued_ms=None if host.queued_s is None else 1000 * host.queued_s,
        waited_ms=sum(sample.idle_ms for sample in samples if not sample.enters(ENTERS_LOADER)),
        idle_known=host.idle_known,
    )


def _summed(
    samples: Iterable[_Sample], lines_of: Callable[[_Sample], Iterable[tuple[HostLine, float]]]
) -> tuple[HostLine, ...]:
    """Equal lines merged, the longest first."""
    totals: dict[HostLine, tuple[float, int, Steps]] = defaultdict(lambda: (0.0, 0, ()))
    for sample in samples:
        for line, ms in lines_of(sample):
            before_ms, before, steps = totals[line]
            if ms > 0:
                others = sample.steps  # the union is unknown if either is
                steps = (
                    None if steps is None or others is None else tuple(sorted({*steps, *others}))
                )
            totals[line] = before_ms + ms, before + sample.samples, steps
    lines = [
        dataclasses.replace(line, ms=ms, samples=count, steps=steps)
        for line, (ms, count, steps) in totals.items()
        if ms > 0
    ]
    return tuple(sorted(lines, key=lambda line: -line.ms))


def _sample(host: wire.HostSeen, stack: wire.StackSeen) -> _Sample | None:
    """The stack's frames, or None if it is another thread's or has no line of the user's."""
    frames = tuple(_owned(host.frames[number]) for number in stack.frames)
    deepest = max((at for at, frame in enumerate(frames) if not frame.package), default=None)
    if stack.thread or deepest is None:
        return None
    return _Sample(frames, deepest, 1000 * stack.s, 1000 * stack.idle_s, stack.samples, stack.steps)


def _owned(frame: wire.FrameSeen) -> wire.FrameSeen:
    """The frame with the package that it serves, if that is not torch."""
    if frame.package != TORCH:
        return frame
    path = frame.file.replace("\\", "/")
    package = next((name for part, name in WITHIN_TORCH.items() if part in path), TORCH)
    return dataclasses.replace(frame, package=package)


def _updating(frames: Sequence[wire.FrameSeen], source: Source) -> bool:
    """Whether an optimizer's own step runs, not its closure or a hook around it."""
    entries = [
        at
        for at, frame in enumerate(frames)
        if frame.package == TORCH and ENTERS_OPTIMIZER in frame.function
    ]
    inner = frames[entries[-1] + 1 :] if entries else ()
    at = next((at for at, frame in enumerate(inner) if _is_step(frame) or _is_foreign(frame)), None)
    if at is None:
        return bool(entries)
    return _is_step(inner[at]) and not _in_closure(inner[at], inner[at + 1 :], source)


def _in_closure(step: wire.FrameSeen, inner: Sequence[wire.FrameSeen], source: Source) -> bool:
    """Whether these frames below an optimizer's step belong to the closure that it calls.

    The steps of torch call no other foreign code. Steps of the user or of packages also call their
    own functions.
    """
    if not step.package:
        text = _text(step, source) or source(step.file, step.line)
        return bool(inner) and f"{CLOSURE}(" in text
    outside = (frame for frame in inner if _is_foreign(frame) and frame.package != step.package)
    first = next(outside, None)
    if first is None or _last(first.function).startswith(OVERRIDES):
        return False
    return step.package == TORCH or not first.package or CLOSURE in first.function.lower()


def _is_step(frame: wire.FrameSeen) -> bool:
    return _last(frame.function) == STEP


def _is_foreign(frame: wire.FrameSeen) -> bool:
    """Whether it belongs neither to torch nor to Python's library."""
    return frame.package != TORCH and frame.package not in STANDARD


def _last(function: str) -> str:
    """The last part of a function's qualified name."""
    return function.rpartition(".")[2]


def _torch_shares(
    samples: Iterable[_Sample], operators: Sequence[Operator]
) -> dict[tuple[str, int], float]:
    """The share of a line's own time that its operators take."""
    own_ms: dict[tuple[str, int], float] = defaultdict(float)
    below_ms: dict[tuple[str, int], float] = defaultdict(float)
    for sample in samples:
        line = sample.own.file, sample.own.line
        if not sample.callees:
            own_ms[line] += sample.ms - sample.idle_ms
        elif sample.callees[0].package == TORCH:
            below_ms[line] += sample.ms
    operators_ms: dict[tuple[str, int], float] = defaultdict(float)
    for operator in operators:
        if operator.where is not None and not operator.backward:
            line = operator.where.file, operator.where.line
            operators_ms[line] += operator.host_ms + CALL_MS * operator.calls
    if not operators_ms:
        return dict.fromkeys(own_ms, 1.0)  # without lines nothing is claimed
    shares = {
        line: max(0.0, operators_ms[line] - below_ms[line]) / ms if ms else 0.0
        for line, ms in own_ms.items()
    }
    return {line: 1.0 if share >= MOSTLY else share for line, share in shares.items()}


def _frees(
    sample: _Sample,
    torch_share: Mapping[tuple[str, int], float],
    returning: set[wire.FrameSeen],
    source: Source,
) -> bool:
    """Whether a line runs no Python but frees tensors, which is torch's time.

    Python hands the interpreter over in calls and where loops start over. Elsewhere a thread is
    seen only if C code has handed it over: when a name is reassigned, when a function of the user's
    returns, or at an operator sign in a line with operators of torch.
    """
    if sample.callees:
        return False
    text = _text(sample.own, source)
    with_operators = torch_share.get((sample.own.file, sample.own.line), 0.0) > 0
    is_call = not text or text.endswith(")")
    return sample.own in returning or text.isidentifier() or (with_operators and not is_call)


def _lines(
    sample: _Sample, torch_share: dict[tuple[str, int], float], source: Source, aliases: Aliases
) -> Iterable[tuple[HostLine, float]]:
    """The lines to which a stack counts, and the time for each."""
    line = _line(sample, source)
    if not sample.callees:
        package = _imported(line.callee, aliases(sample.own.file))
        share = torch_share.get((sample.own.file, sample.own.line), 0.0) if not package else 0.0
        is_call = CALL.match(line.callee) is not None and line.callee.endswith(")")
        if aliases(sample.own.file).get(_root(line.callee)) == TORCH and (share > 0 or is_call):
            share = 1.0  # its other time is torch's own function, which may have no Python frame
        yield dataclasses.replace(line, kind=HostKind.TORCH), share * sample.ms
        kind = HostKind.LIBRARY if package else HostKind.PYTHON
        line = dataclasses.replace(line, kind=kind, package=package)
        yield from _waiting_apart(sample, line, 1 - share)
    elif _is_torch(sample):
        yield line, sample.ms
    else:
        package = line.package  # generated code and inner modules like _strptime: its call's
        if package == GENERATED or package.startswith("_"):
            package = _imported(line.callee, aliases(sample.own.file)) or package
        line = dataclasses.replace(line, kind=HostKind.LIBRARY, package=package)
        yield from _waiting_apart(sample, line, 1.0)


def _waiting_apart(
    sample: _Sample, line: HostLine, share: float
) -> Iterable[tuple[HostLine, float]]:
    """`share` of the sample's time, with its idle part as waiting."""
    idle_ms = sample.idle_ms if sample.idle_ms >= BLOCKED_SHARE * sample.ms else 0.0
    yield dataclasses.replace(line, kind=HostKind.WAITING), share * idle_ms
    yield line, share * (sample.ms - idle_ms)


def _imported(expression: str, names: Mapping[str, str]) -> str:
    """The package that an expression begins with, np.sort(...) -> numpy; empty if none or torch."""
    package = names.get(_root(expression), "")
    return "" if package == TORCH else package


def _root(expression: str) -> str:
    """The name that a call or an attribute begins with; empty if it is neither."""
    root = NAME.match(expression)
    return root[0] if root else ""


def _is_torch(sample: _Sample) -> bool:
    """Whether torch itself runs, or a model's code that torch has called."""
    callees = sample.callees
    if callees[-1].package == TORCH:
        return True
    modules = (frame.package == TORCH and ENTERS_MODULE in frame.function for frame in callees)
    return any(modules)


def _line(sample: _Sample, source: Source) -> HostLine:
    """The line with the kind TORCH, without its time."""
    user_frames = [frame for frame in sample.frames[: sample.deepest] if not frame.package]
    calling = sample.callees[0].package if sample.callees else TORCH
    calls_torch = calling != TORCH and sample.callees[-1].package == TORCH
    return HostLine(
        where=_place(sample.own, source),
        kind=HostKind.TORCH,
        ms=0.0,
        callee=_expression(sample.own, source) or sample.frames[-1].function,
        package=_package(sample),
        chain=tuple(_place(frame, source) for frame, _ in itertools.groupby(user_frames)),
        loading=sample.enters(ENTERS_LOADER),
        modelling=sample.enters(ENTERS_MODULE),
        framework=calling if calls_torch else "",
        updating=_updating(sample.frames, source),
        hooked=any(  # a function of the user's for a module other than its forward
            frame.package == TORCH
            and ENTERS_MODULE in frame.function
            and not callee.package
            and _last(callee.function) != FORWARD
            for frame, callee in itertools.pairwise(sample.frames[: sample.deepest + 1])
        ),
        collating=bool(sample.callees)
        and _is_torch(sample)
        and any(ENTERS_LOADER in frame.function for frame in sample.callees),
        formats=any(
            frame.package == TORCH and FORMATS in frame.file.replace("\\", "/")
            for frame in sample.callees
        ),
    )


def _package(sample: _Sample) -> str:
    """The package of the code, the first below torch if several; empty if it is the user's own."""
    callees = sample.callees
    if not callees or _is_torch(sample):
        return TORCH if callees else ""
    inner = next((at for at in range(len(callees) - 1, -1, -1) if callees[at].package == TORCH), -1)
    packages = [frame.package for frame in callees[inner + 1 :]]
    return next((package for package in packages if package != GENERATED), GENERATED)


def _expression(frame: wire.FrameSeen, source: Source) -> str:
    """The text of the executed code, long calls without arguments; empty if unknown."""
    raw, complete = _text(frame, source), frame.end_line == frame.line
    if len(raw) <= EXPRESSION and (complete or not raw):
        return raw
    name = CALL.match(raw)
    return f"{name[0]}(...)" if name else f"{raw[: EXPRESSION - 3]}..."


def _text(frame: wire.FrameSeen, source: Source) -> str:
    """The executed code, as far as it is on the frame's line; empty if unknown."""
    if frame.column is None or frame.end_column is None:
        return ""
    end = frame.end_column if frame.end_line == frame.line else None
    text = source(frame.file, frame.line)
    return text.encode()[frame.column : end].decode(errors="replace").strip()


def _place(frame: wire.FrameSeen, source: Source) -> Place:
    return Place(frame.file, frame.line, frame.function, source(frame.file, frame.line).strip())


def _flames(
    host: wire.HostSeen, lines_of: Callable[[_Sample], Iterable[tuple[HostLine, float]]]
) -> tuple[HostStack, ...]:
    """The longest stacks, in words. lines_of: the lines to which a stack counts."""
    totals: dict[tuple[str, tuple[Flame, ...]], float] = defaultdict(float)
    for stack in host.stacks:
        frames = (host.frames[number] for number in stack.frames)
        flames = (
            (
                f"{frame.package} {frame.function}",
                HostKind.TORCH if frame.package == TORCH else HostKind.LIBRARY,
            )
            if frame.package
            else (f"{frame.file}:{frame.line} {frame.function}", HostKind.PYTHON)
            for frame in frames
        )
        words = tuple(flame for flame, _ in itertools.groupby(flames))
        sample = _sample(host, stack)
        if sample is None:
            totals[stack.thread, words] += 1000 * stack.s
            continue
        for line, ms in lines_of(sample):
            totals["", (*words, *_called(sample, line))] += ms
    longest = sorted(totals.items(), key=lambda item: -item[1])[:FLAME_STACKS]
    return tuple(
        HostStack(tuple(text for text, _ in flames), ms, thread, tuple(kind for _, kind in flames))
        for (thread, flames), ms in longest
        if ms > 0
    )


def _called(sample: _Sample, line: HostLine) -> tuple[Flame, ...]:
    """What has no Python frame: torch's operators, a compiled package's function, waiting."""
    if line.kind is HostKind.WAITING:
        return ((f"waiting in {line.callee}" if not sample.callees else "waiting", line.kind),)
    if sample.callees or line.kind is HostKind.PYTHON:
        return ()
    callee = "operators" if line.kind is HostKind.TORCH else line.callee
    return ((f"{line.package or TORCH} {callee}", line.kind),)
