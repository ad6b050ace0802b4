"""Record some steps with torch.profiler, and give way if the script profiles itself."""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.attach.replacing import Replacement, Undo

ATTEMPTS = 3
"""How often a recording, or a count, is restarted after the script's own profiler interrupted
it."""
COMPRESSION = 3
"""gzip's level: 9 takes four times as long for a tenth less."""
ERROR = 2
"""torch's log level (glog's): only errors."""
PROFILER_TOOL = 2
"""sys.monitoring's number for profilers (Python 3.12): cProfile is one."""


class ProfilerRecording:
    """Steps `warmup` unrecorded, then `steps` recorded; `step` at the end of each.

    Starting and ending take time. If the script starts its own profiler meanwhile, this one gives
    way, since torch allows only one: `yielded` is then true, and there is no trace.
    """

    def __init__(self, device: str, steps: int, warmup: int, detail: bool) -> None:
        self.warmup = warmup
        self.steps = steps
        self.step_calls = 0
        """Calls of `step` so far."""
        self.yielded = False
        self.over = False
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        of_device = getattr(profiler.ProfilerActivity, device.upper(), None)
        if device != "cpu" and of_device is not None:
            supported = profiler.supported_activities()  # type: ignore[no-untyped-call]  # torch's
            if of_device in supported:
                activities.append(of_device)
        # Planned with all its steps: after that many `step` calls it ends.
        self._profile = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1),
            with_stack=detail,
            record_shapes=detail,
            profile_memory=detail,
        )
        self._undo: list[Undo] = []
        self._broken_off = ""
        self._memory = detail

    @property
    def recorded(self) -> int:
        """Steps that are in the trace."""
        return max(0, min(self.step_calls - self.warmup, self.steps))

    @property
    def recording(self) -> bool:
        """Whether the current step is in the trace."""
        return not self.over and self.warmup <= self.step_calls < self.warmup + self.steps

    def start(self) -> None:
        """Begin with the warm-up."""
        self._undo.append(give_way(self._script_profiles))
        if self._memory:
            self._undo.append(_without_warnings())
        self._quietly(self._profile.start)

    def step(self) -> bool:
        """A step has ended; returns True if it was the last one."""
        if self.over:
            return True
        self.step_calls += 1
        self._quietly(self._profile.step)
        if self.step_calls >= self.warmup + self.steps:
            self.stop()
        return self.over

    def stop(self) -> None:
        """End it at once."""
        if self.over:
            return
        if self.recording:
            self._broken_off = f'"ProfilerStep#{self._profile.step_num}"'
        self.over = True
        self._quietly(self._profile.__exit__, None, None, None)
        while self._undo:
            self._undo.pop()()

    def save(self, path: str) -> str:
        """Write the trace as `<path>.json.gz`; returns that path."""
        plain, packed = f"{path}.json", f"{path}.json.gz"
        self._profile.export_chrome_trace(plain)
        if self._broken_off:
            with open(plain, encoding="utf-8") as marked:  # noqa: PTH123
                text = marked.read()
            with open(plain, "w", encoding="utf-8") as unmarked:  # noqa: PTH123
                unmarked.write(text.replace(self._broken_off, '"broken off"'))
        part = f"{packed}.part"
        packing = gzip.open(part, "wb", compresslevel=COMPRESSION)  # noqa: SIM115
        with packing as target, open(plain, "rb") as source:  # noqa: PTH123
            shutil.copyfileobj(source, target, 1 << 20)
        os.replace(part, packed)  # noqa: PTH105
        os.remove(plain)  # noqa: PTH107
        return packed

    def _quietly(self, action: Callable[..., Any], *args: Any) -> None:
        """Run without warnings: the profiler's concern no user, who did not start it."""
        before, _state.busy = _state.busy, True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                action(*args)
        finally:
            _state.busy = before

    def _script_profiles(self) -> None:
        if not self.over:
            self.yielded = True
            self.stop()


class _State:
    """The state of torch's one profiler in this process."""

    busy = False
    """Whether the agent itself is starting or ending it."""
    held_off = False
    """Whether the script's own profilers record nothing."""


_state = _State()


def busy() -> bool:
    """Whether the agent itself is starting or ending torch's profiler."""
    return _state.busy


def others_held_off(held: bool) -> None:
    """Whether the script's own profilers are kept from recording: nothing gives way to them."""
    _state.held_off = held


def give_way(begins: Callable[[], None]) -> Undo:
    """Call `begins` before the script starts a torch profiler, by wrapping its start."""
    module = torch.autograd.profiler

    def yielding(original: Callable[..., Any]) -> Callable[..., Any]:
        def first(*args: Any, **kwargs: Any) -> Any:
            if not (_state.busy or _state.held_off):
                begins()
            return original(*args, **kwargs)

        return first

    names = ("_prepare_profiler", "_enable_profiler")
    begin = Replacement(module, {name: yielding(getattr(module, name)) for name in names})
    begin.put()
    return begin.back


def other_profiler() -> bool:
    """Whether the script's own profiler, torch's or Python's, runs on this thread."""
    if torch.autograd.profiler._is_profiler_enabled or torch._C._autograd._profiler_enabled():
        return True
    if sys.getprofile() is not None or threading.getprofile() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(PROFILER_TOOL) is not None


def _without_warnings() -> Undo:
    """Raise torch's log level: its allocator warns of every tensor older than the trace."""
    name = {"linux": "libc10.so", "darwin": "libc10.dylib"}.get(sys.platform, "c10.dll")
    path = os.path.join(os.path.dirname(torch.__file__), "lib", name)  # noqa: PTH118, PTH120
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(path), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # then it warns
        return lambda: None
    before, level.value = level.value, max(level.value, ERROR)

    def undo() -> None:
        level.value = before

    return undo
