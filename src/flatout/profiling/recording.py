"""Profile a program: run it with the agent inside, and analyse the window that it recorded."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flatout.benching import ceilings, reaching
from flatout.nouns.ceiling import Ceiling
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Observer, Silent
from flatout.nouns.profile import Profile
from flatout.probing.identity import identity
from flatout.probing.sampling import Sampler
from flatout.profiling import memory_categories, records
from flatout.profiling.records import Follower
from flatout.profiling.trace import analysing, places, reading
from flatout.running import foreground
from flatout.running.command import Command
from flatout.running.processes import Process
from flatout_agent import wire

ENVIRONMENT = {"KINETO_LOG_LEVEL": "99"}
"""torch.profiler's library writes lines of its own to stderr, which is the program's."""


@dataclass(frozen=True)
class Settings:
    """How to profile."""

    steps: int = 6
    """Recorded for their times."""
    skip_s: float = 0.0
    """Record only after this time."""
    stop: bool = False
    """End the program once the window is recorded."""
    bench: bool = True
    """Measure ceilings where this machine's are not known yet."""
    stdout_to_stderr: bool = False
    boosts: tuple[wire.BoostOrder, ...] = ()
    """Of a plan, to profile the program with them."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """That these boosts need."""

    @property
    def orders(self) -> wire.ProfileOrders:
        """For the agent."""
        return wire.ProfileOrders(skip_s=self.skip_s, steps=self.steps, stop=self.stop)


@dataclass(frozen=True)
class Recorded:
    """A profile, and what else is to be told of it."""

    profile: Profile
    notes: tuple[str, ...] = ()
    """What could not be seen, and why."""
    traces: tuple[Path, ...] = ()
    """The raw traces for times, of all ranks."""
    folder: Path | None = None
    """Of this run."""
    wall_s: float | None = None


Ready = Callable[[Recorded], None]


def profile(command: Command, settings: Settings, observer: Observer | None = None) -> Profile:
    """The program's profile, when the program has ended. Raises UserError where there is none."""
    return record(command, settings, observer or Silent()).profile


def record(
    command: Command,
    settings: Settings,
    observer: Observer,
    ready: Ready = lambda recorded: None,
) -> Recorded:
    """Run the program in the foreground to its end; `ready` gets the profile as soon as it is made.

    Raises UserError where the program took too few steps, failed before, or never trained.
    """
    began = time.monotonic()
    known = ceilings.for_profiles(command.python, observer.phase, settings.bench)
    window = _Window(command, settings, observer, known, ready, began)
    quiet = {name: text for name, text in ENVIRONMENT.items() if name not in os.environ}
    ended = foreground.run(
        command,
        settings.boosts,
        {**quiet, **settings.variables},
        observer.phase,
        settings.stdout_to_stderr,
        settings.orders,
        window.follow,
    )
    if window.recorded is None:
        raise records.why_not(window.processes, ended.returncode, ended.followed)
    return window.recorded


def from_traces(paths: Sequence[Path]) -> Recorded:
    """The profile that traces which exist already tell. Raises UserError where they tell none."""
    began = time.monotonic()
    recordings = reading.read(paths)
    if not recordings:
        raise UserError(
            f"no trace in {', '.join(map(str, paths))}", "name a .json or .json.gz file"
        )
    found = analysing.analyse(recordings[0], roots=(Path.cwd(),))
    found = dataclasses.replace(
        found,
        ranks=analysing.ranks(recordings),
        ceilings=_of_this_machine(found.device_name),
    )
    notes = () if found.trace_steps else ("the trace marks no steps: it is taken for one step",)
    return Recorded(found, notes, tuple(paths), None, time.monotonic() - began)


class _Window:
    """Follows one run until the traces are there, and analyses them while the program goes on."""

    def __init__(
        self,
        command: Command,
        settings: Settings,
        observer: Observer,
        known: tuple[Ceiling, ...],
        ready: Ready,
        began: float,
    ) -> None:
        self.command = command
        self.settings = settings
        self.observer = observer
        self.ceilings = known
        self.ready = ready
        self.began = began
        self.processes: list[Process] = []
        self.recorded: Recorded | None = None

    def follow(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        """Until the window is complete or the program has ended; then its profile is made."""
        follower = Follower(path, self.observer)
        with Sampler() as sampler:
            follower.follow(lambda: process.poll() is None, sampler.on)
        self.processes = follower.processes()
        leading = records.leading(self.processes)
        if leading is None:
            return
        if self.settings.orders.stop:
            self.observer.phase("recorded; the program was ended (--stop); analysing")
        elif process.poll() is None:
            self.observer.phase("recorded; the program goes on by itself; analysing")
        devices = sampler.samples([item.pid for item in self.processes], os.environ)
        found = analysed(self.command, self.processes, self.ceilings)
        assert found is not None
        found = dataclasses.replace(found, devices=devices)
        self.recorded = Recorded(
            profile=found,
            notes=records.notes(self.processes, leading, self.settings.orders),
            traces=records.traces(self.processes),
            folder=path.parent,
            wall_s=time.monotonic() - self.began,
        )
        self.ready(self.recorded)


def analysed(
    command: Command, processes: Sequence[Process], known: tuple[Ceiling, ...]
) -> Profile | None:
    """The profile of what these processes have recorded, held against the `known` ceilings.

    None: none of them has a trace.
    """
    leading = records.leading(processes)
    if leading is None or leading.loop is None:
        return None
    seen = leading.loop
    roots = [Path.cwd(), *([command.script.absolute().parent] if command.script else [])]
    traces = list(records.traces(processes))
    recordings = reading.read(traces)
    recording = next(one for one in recordings if one.path == str(Path(seen.trace)))
    detail = reading.read([Path(seen.detail_trace)])[0] if seen.detail_trace else None
    found = analysing.analyse(recording, detail, step_ms=1000 * seen.step_s, roots=roots)
    facts = leading.facts
    if facts is not None and facts.device in ("cuda", "xpu") and found.anatomy.device == "cpu":
        raise UserError(
            f"the recording holds nothing of what {facts.device_name or 'the GPU'} did",
            "another profiler may be using CUPTI (only one can), or this torch was built without "
            "it: torch.profiler.supported_activities() must name the GPU",
            exit_code=1,
        )
    whole = dataclasses.replace(
        found,
        command=command.display,
        job=facts,
        boosts=leading.engaged,
        seen=_short_places(seen, roots[0]),
        trace=seen.trace,
        ceilings=known,
        ranks=analysing.ranks(recordings),
        device_name=found.device_name or (facts.device_name if facts else None),
        capability=found.capability or (facts.capability if facts else None),
    )
    return memory_categories.told_apart(reaching.reached(whole))


def _short_places(seen: wire.LoopSeen, root: Path) -> wire.LoopSeen:
    """With file:line from `root`, as a Place says it, instead of whole paths."""

    def shortened(where: str | None) -> str | None:
        file, colon, line = (where or "").rpartition(":")
        return f"{places.short(Path(file), root)}{colon}{line}" if file else where

    return dataclasses.replace(
        seen,
        calls=tuple(dataclasses.replace(call, where=shortened(call.where)) for call in seen.calls),
        eval_where=shortened(seen.eval_where),
        backward_where=shortened(seen.backward_where),
        optimizer_where=shortened(seen.optimizer_where),
        model_where=shortened(seen.model_where),
        loader_where=shortened(seen.loader_where),
        losses_where=shortened(seen.losses_where),
    )


def _of_this_machine(device_name: str | None) -> tuple[Ceiling, ...]:
    """Ceilings that were measured on such a device; a trace may come from anywhere."""
    here = identity()
    if device_name is None or device_name not in [gpu.name for gpu in here.gpus]:
        return ()
    return ceilings.cached(here)
