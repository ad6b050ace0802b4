"""Profile a program: run it with the agent inside, and analyse the recorded window."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.benching import ceilings, product_times, reaching
from flatout.nouns import units
from flatout.nouns.ceiling import Ceiling
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Observer, Silent
from flatout.nouns.profile import Profile
from flatout.probing.identity import identity
from flatout.probing.sampling import Sampler
from flatout.profiling import host_lines, host_parts, memory_categories, records
from flatout.profiling.records import Follower
from flatout.profiling.trace import analysing, places, reading, sites
from flatout.running.one import foreground
from flatout.running.one.command import Command
from flatout.running.one.records import Process
from flatout.running.one.trial_process import start_trial
from flatout_agent import wire

ENVIRONMENT = {"KINETO_LOG_LEVEL": "99"}
"""torch.profiler's library writes to stderr, which belongs to the program."""


@dataclass(frozen=True)
class ProfileSettings:
    """How to profile."""

    steps: int = 6
    """Steps recorded for their times."""
    skip_s: float = 0.0
    """Start recording after this time."""
    stop: bool = False
    """End the program as soon as the window is recorded."""
    bench: bool = True
    """Measure this machine's ceilings if they are not yet known."""
    stdout_to_stderr: bool = False
    boosts: tuple[wire.BoostOrder, ...] = ()
    """A plan's boosts, to profile the program with."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that these boosts need."""

    @property
    def orders(self) -> wire.ProfileOrders:
        """The orders for the agent."""
        return wire.ProfileOrders(skip_s=self.skip_s, steps=self.steps, stop=self.stop)


@dataclass(frozen=True)
class Recorded:
    """A profile and what else is reported."""

    profile: Profile
    notes: tuple[str, ...] = ()
    """What could not be recorded, and why."""
    folder: Path | None = None
    """The folder of this run."""
    wall_s: float | None = None


Ready = Callable[[Recorded], None]
PLACES = ("lines", "training", "eval_called")
"""Fields of the agent's records that hold file:line, besides those that end in `where`."""


def profile(
    command: Command, settings: ProfileSettings, observer: Observer | None = None
) -> Profile:
    """The program's profile, once the program has ended. Raises UserError if there is none."""
    return record(command, settings, observer or Silent()).profile


def record(
    command: Command,
    settings: ProfileSettings,
    observer: Observer,
    ready: Ready = lambda recorded: None,
) -> Recorded:
    """Run the program in the foreground to its end; `ready` gets the profile once it exists.

    Raises UserError if the program took too few steps, failed too early, or never trained.
    """
    started_at = time.monotonic()
    known_ceilings = ceilings.for_profiles(command.python, observer.phase, settings.bench)
    window = _Window(command, settings, observer, known_ceilings, ready, started_at)
    defaults = {name: text for name, text in ENVIRONMENT.items() if name not in os.environ}
    result = foreground.run(
        command,
        settings.boosts,
        {**defaults, **settings.variables},
        observer.phase,
        settings.stdout_to_stderr,
        settings.orders,
        window.follow,
    )
    if not window.complete and result.returncode == 0 and result.folder is not None:
        window.again(result.folder)
    if window.recorded is None:
        raise records.why_not(window.processes, result)
    window.report()
    return window.recorded


def from_traces(paths: Sequence[Path]) -> Recorded:
    """The profile of existing traces. Raises UserError if they contain none."""
    started_at = time.monotonic()
    recordings = reading.read(paths)
    if not recordings:
        raise UserError(
            f"no trace in {', '.join(map(str, paths))}", "name a .json or .json.gz file"
        )
    trace_profile = analysing.analyse(recordings[0], roots=(Path.cwd(),))
    # Ceilings measured on such a device; a trace may come from any machine.
    machine, device_name = identity(), trace_profile.device_name
    is_here = device_name is not None and device_name in [gpu.name for gpu in machine.gpus]
    trace_profile = dataclasses.replace(
        trace_profile,
        ranks=analysing.ranks(recordings),
        ceilings=ceilings.cached(machine) if is_here else (),
    )
    notes = (
        ()
        if trace_profile.trace_steps
        else ("the trace marks no steps: it is treated as one step",)
    )
    return Recorded(trace_profile, notes, None, time.monotonic() - started_at)


class _Window:
    """Follows one run until its traces exist, and analyses them while the program continues."""

    def __init__(
        self,
        command: Command,
        settings: ProfileSettings,
        observer: Observer,
        known_ceilings: tuple[Ceiling, ...],
        ready: Ready,
        started_at: float,
    ) -> None:
        self.command = command
        self.settings = settings
        self.observer = observer
        self.ceilings = known_ceilings
        self.ready = ready
        self.started_at = started_at
        self.processes: list[Process] = []
        self.recorded: Recorded | None = None
        self._reported = False

    def follow(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        """Follow the run until its window is complete or it ends; then make its profile."""
        self._record(path, lambda: process.poll() is None, self.settings.orders)
        if self.recorded is not None and (self.complete or not records.ended_early(self.processes)):
            self.report()

    @property
    def complete(self) -> bool:
        """Whether every phase has had its steps."""
        main_process = records.leading(self.processes)
        loop = main_process.loop if main_process is not None else None
        return loop is not None and bool(loop.detail_trace)

    def again(self, folder: Path) -> None:
        """Run the program once more, with its files kept apart, if that can give a profile.

        A short program then runs with its steps known, and one whose own profiler was always on
        runs without that profiler.
        """
        steps = max((process.step_count for process in self.processes), default=0)
        profiled = records.profiled_throughout(self.processes)
        if steps < records.LEAST_STEPS or (self.settings.orders.skip_s and profiled is None):
            return
        why = f"the program took {units.count(steps, 'step')}: running it again to record them all "
        if profiled is not None:
            why = "the script's own profiler was on all the time: running it again without that "
        self.observer.phase(f"{why}(what it saves is kept apart)")
        folder = folder / "again"
        profile_orders = dataclasses.replace(
            self.settings.orders,
            known_steps=steps if profiled is None or steps < wire.SHORT_RUN else None,
            without_profiler=profiled is not None,
        )
        orders = wire.Orders(
            records=str(folder / "records"),
            boosts=self.settings.boosts,
            trial=wire.TrialOrders(scratch=str(folder / "scratch"), protect=str(Path.cwd())),
            profile=profile_orders,
        )
        first = self.processes
        cache = Path(".flatout/cache/inductor")
        with start_trial(self.command, orders, folder, cache, self.settings.variables) as program:
            self._record(folder / "records", lambda: program.alive, profile_orders)
        if records.leading(self.processes) is None:
            self.processes = first
        elif profiled is not None and self.recorded is not None:
            # What was recorded without the script's own profiler gets the facts about it from the
            # run in which it was on.
            seen = self.recorded.profile.seen
            assert seen is not None
            where = _short_places(profiled, Path.cwd()).profiler_where
            seen = dataclasses.replace(
                seen,
                profiler=True,
                profiler_where=where or seen.profiler_where,
                profiler_step_s=profiled.profiler_step_s,
            )
            profile = dataclasses.replace(self.recorded.profile, seen=seen)
            note = (
                "only one profiler can be active: recorded in a second run, in which the script's "
                "own recorded nothing"
            )
            self.recorded = dataclasses.replace(
                self.recorded,
                profile=profile,
                notes=(*self.recorded.notes, note),
            )

    def report(self) -> None:
        """Hand over the profile, once."""
        if self.recorded is not None and not self._reported:
            self._reported = True
            self.ready(self.recorded)

    def _record(self, path: Path, alive: Callable[[], bool], orders: wire.ProfileOrders) -> None:
        """Follow the records in `path`, and make the profile if there is a trace."""
        follower = Follower(path, self.observer)
        with Sampler() as sampler:
            follower.follow(alive, sampler.on)
        self.processes = follower.processes()
        main_process = records.leading(self.processes)
        if main_process is None:
            return
        if orders.stop:
            self.observer.phase("recorded; the program was ended (--stop); analysing")
        elif alive():
            self.observer.phase("recorded; the program continues on its own; analysing")
        pids = [process_state.pid for process_state in self.processes]
        devices = sampler.samples(pids, os.environ)
        run_profile = profile_of(self.command, self.processes, self.ceilings)
        assert run_profile is not None
        if not alive() and self.settings.bench and run_profile.products:  # the cores are idle now
            self.observer.phase("timing its products in other dtypes and layouts")
            threads = run_profile.job.threads if run_profile.job is not None else 1
            timed = product_times.measured(run_profile.products, self.command.python, threads)
            run_profile = dataclasses.replace(run_profile, products=timed)
        self.recorded = Recorded(
            profile=dataclasses.replace(run_profile, devices=devices),
            notes=records.notes(self.processes, main_process, orders),
            folder=path.parent,
            wall_s=time.monotonic() - self.started_at,
        )


def profile_of(
    command: Command, processes: Sequence[Process], known_ceilings: tuple[Ceiling, ...]
) -> Profile | None:
    """The profile of what these processes recorded, compared with `known_ceilings`.

    None if none of them has a trace.
    """
    main_process = records.leading(processes)
    if main_process is None or main_process.loop is None:
        return None
    loop = main_process.loop
    roots = [Path.cwd(), *([command.script.absolute().parent] if command.script else [])]
    traces = list(records.traces(processes))
    recordings = reading.read(traces)
    recording = next(
        recording for recording in recordings if recording.path == str(Path(loop.trace))
    )
    detail = reading.read([Path(loop.detail_trace)])[0] if loop.detail_trace else None
    step_profile = analysing.analyse(recording, detail, step_ms=1000 * loop.step_s, roots=roots)
    facts = main_process.facts
    on_gpu = facts is not None and facts.device in ("cuda", "xpu")
    if facts is not None and on_gpu and step_profile.anatomy.device == "cpu":
        raise UserError(
            f"the recording contains no work of {facts.device_name or 'the GPU'}",
            "another profiler may be using CUPTI (only one can), or this torch was built without "
            "it: torch.profiler.supported_activities() must name the GPU",
            exit_code=1,
        )
    seen = _short_places(loop, roots[0])
    if main_process.host is not None:
        step_profile = _with_host(step_profile, main_process.host, roots[0], seen.update)
    complete = dataclasses.replace(
        step_profile,
        command=command.display,
        job=facts,
        boosts=main_process.engaged,
        seen=seen,
        trace=loop.trace,
        ceilings=known_ceilings,
        ranks=analysing.ranks(recordings),
        device_name=step_profile.device_name or (facts.device_name if facts else None),
        capability=step_profile.capability or (facts.capability if facts else None),
    )
    return memory_categories.by_category(reaching.reached(complete))


def _with_host(
    profile: Profile, host: wire.HostSeen, root: Path, update: wire.UpdateSeen | None
) -> Profile:
    """The profile with the host's time by line, and its anatomy divided accordingly."""
    frames = tuple(
        frame
        if frame.package
        else dataclasses.replace(frame, file=places.short(Path(frame.file), root))
        for frame in host.frames
    )
    host_time = host_lines.host_time(
        dataclasses.replace(host, frames=frames),
        profile.operators,
        lambda file, line: sites.whole_line(root / file, line),
        lambda file: sites.imported_names(root / file),
    )
    if update is not None:
        host_time = dataclasses.replace(
            host_time,
            lines=tuple(
                dataclasses.replace(line, updating=True)
                if str(line.where) in update.lines
                else line
                for line in host_time.lines
            ),
        )
    anatomy = host_parts.divided(profile.anatomy, host_time)
    return dataclasses.replace(profile, host=host_time, anatomy=anatomy)


def _short_places(loop: wire.LoopSeen, root: Path) -> wire.LoopSeen:
    """The loop with file:line relative to `root`, as in a Place, instead of full paths."""

    def shortened(place: str) -> str:
        file, colon, line = place.rpartition(":")
        return f"{places.short(Path(file), root)}{colon}{line}" if file else place

    short: wire.LoopSeen = _with_places(loop, shortened)
    return dataclasses.replace(
        short,
        recompiles=tuple(places.short_paths(text, root) for text in short.recompiles),
        graph_breaks=tuple(places.short_paths(text, root) for text in short.graph_breaks),
    )


def _with_places(value: Any, change: Callable[[str], str], is_place: bool = False) -> Any:
    """The value with each file:line in it changed, also in nested rows.

    is_place: whether its texts are such places.
    """
    if isinstance(value, str):
        return change(value) if is_place else value
    if isinstance(value, tuple):
        return tuple(_with_places(part, change, is_place) for part in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {
        field.name: _with_places(
            getattr(value, field.name), change, field.name.endswith("where") or field.name in PLACES
        )
        for field in dataclasses.fields(value)
    }
    return dataclasses.replace(value, **changed)
