"""From a capture folder to measured, verified candidates, the choice and the artefact folder."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flatout.exporting import artefact, candidates, choosing, notes, timing, worker
from flatout.exporting.candidates import EAGER, BuildPlan
from flatout.exporting.timing import TimedBuild
from flatout.exporting.worker import Broken
from flatout.nouns.errors import UserError
from flatout.nouns.exported import (
    BuildState,
    ExportCandidate,
    ExportGuard,
    ExportResult,
    ExportSettings,
    Goal,
)
from flatout.running.one import folder as run_folders
from flatout_agent import limits

SCHEMA = "flatout.capture/1"
FILES = ("capture.json", "model.pt2", "samples.pt")
PREPARE_LIMIT_S = 600.0
LOAD_LIMIT_S = 300.0
VERIFY_LIMIT_S = 300.0
QUICK_S = 60.0
ORDER = (
    BuildState.CHOSEN,
    BuildState.VERIFIED,
    BuildState.REFUSED,
    BuildState.FAILED,
    BuildState.ABSENT,
    BuildState.SKIPPED,
)
"""The order of the rows: those that came furthest first, equals by cost."""
Tell = Callable[[str], None]


def run(
    capture: Path,
    settings: ExportSettings,
    tell: Tell | None = None,
) -> ExportResult:
    """Build, verify and time the captured model with every backend; keep the best.

    tell: called with each step, for a line of progress.
    Raises UserError if the folder holds no capture, or the model does not repeat its results.
    """
    began = time.monotonic()
    captured = read(capture)
    artefact.check_target(settings.out)
    export = Export(capture, captured, settings, tell or (lambda step: None))
    with ExitStack() as processes:
        export.prepare()
        for plan in candidates.plans(settings):
            export.attempt(plan, processes)
            export.check_eager()
        export.measure()
    return export.result(time.monotonic() - began)


def read(capture: Path) -> dict[str, Any]:
    """The facts of a capture. Raises UserError if the folder holds none."""
    missing = [name for name in FILES if not (capture / name).is_file()]
    if missing:
        raise UserError(
            f"{capture} is not a captured model: {missing[0]} is missing",
            "make one: flatout export train.py",
        )
    try:
        facts = json.loads((capture / "capture.json").read_text(encoding="utf-8"))
        schema = facts["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{capture}/capture.json cannot be read: {error}") from error
    if schema != SCHEMA:
        raise UserError(
            f"{capture} was written by another flatout ({schema}; this one reads {SCHEMA})",
            "capture again: flatout export train.py",
        )
    return dict(facts)


@dataclass
class Attempt:
    """A built and verified candidate, and its running process."""

    plan: BuildPlan
    row: ExportCandidate
    folder: Path
    timed: TimedBuild


@dataclass
class Export:
    """An export in progress."""

    capture: Path
    captured: dict[str, Any]
    settings: ExportSettings
    tell: Tell
    folder: Path = field(default_factory=lambda: run_folders.fresh("export"))
    facts: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    rows: dict[str, ExportCandidate] = field(default_factory=dict)
    verified: list[Attempt] = field(default_factory=list)
    why: str = ""
    rounds: timing.RoundCount | None = None

    def __post_init__(self) -> None:
        self.threads = self.settings.threads or limits.usable_cores()
        self.prepared = self.folder / "prepared"

    def _order(self, do: str, **more: Any) -> dict[str, Any]:
        # Compilers' caches for all builds and later exports: headers alone take half a minute. A
        # process that serves gets its own empty cache, as where the model will be served.
        usual = run_folders.ROOT / "cache"
        own = self.folder.resolve().is_relative_to(run_folders.ROOT.resolve())
        return {
            "do": do,
            "capture": str(self.capture.resolve()),
            "prepared": str(self.prepared.resolve()),
            "threads": self.threads,
            "compiled": str((usual if own else self.folder / "scratch").resolve()),
            **more,
        }

    def _memory(self) -> int:
        """Bytes that the next process may take, besides the running ones."""
        return worker.memory_limit(self.settings.memory_bytes)

    def _once(self, order: dict[str, Any], limit_s: float) -> dict[str, Any]:
        return worker.once(self.settings.python, order, limit_s, self._memory())

    def prepare(self) -> None:
        """Compute the references, and find which packages there are."""
        self.tell("the model in eager float32")
        try:
            self.facts = self._once(self._order("prepare"), PREPARE_LIMIT_S)
            packages = [
                (package.pip, package.module)
                for plan in candidates.plans(self.settings)
                for package in plan.backend.packages(plan.variant)
            ]
            order = self._order("packages", packages=sorted({*packages}))
            self.versions = self._once(order, QUICK_S)["versions"]
        except Broken as reason:
            raise UserError(
                f"the captured model cannot be exported: {reason}",
                "what was captured: flatout export --help",
                1,
            ) from reason

    def attempt(self, plan: BuildPlan, processes: ExitStack) -> None:
        """Build, load and verify one candidate; any outcome is a row."""
        reason = candidates.why_not(plan, self.settings, self.facts)
        if reason:
            self.rows[plan.id] = plan.row(BuildState.SKIPPED, reason)
            return
        packages = [package.pip for package in plan.backend.packages(plan.variant)]
        missing = [name for name in packages if self.versions.get(name) is None]
        if missing:
            line = f"{self.settings.python} -m pip install {' '.join(missing)}"
            why = f"{' and '.join(missing)} not installed"
            self.rows[plan.id] = plan.row(BuildState.ABSENT, why, line)
            return
        self.rows[plan.id] = row = plan.row(BuildState.FAILED)  # until it succeeds
        self.tell(plan.variant.title)
        try:
            self._build(plan, row, processes)
        except Broken as broken:
            self.rows[plan.id] = replace(self.rows[plan.id], reason=str(broken))

    def check_eager(self) -> None:
        """Raises UserError if eager, the first build and reference for all others, fails."""
        eager = self.rows[EAGER]
        if eager.state is not BuildState.VERIFIED:
            raise UserError(
                f"the captured model does not run in eager float32: {eager.reason}",
                "capture it again: flatout export train.py",
                1,
            )

    def _build(self, plan: BuildPlan, row: ExportCandidate, processes: ExitStack) -> None:
        folder = self.folder / "candidates" / plan.id
        folder.mkdir(parents=True)
        began = time.monotonic()
        order = self._order(
            "build",
            folder=str(folder.resolve()),
            backend=plan.backend.id,
            variant=plan.variant.name,
        )
        options = self._once(order, self.settings.build_limit_s)["options"]
        versions = {
            package.pip: version
            for package in plan.backend.packages(plan.variant)
            if (version := self.versions.get(package.pip)) is not None
        }
        versions = {"torch": str(self.facts["torch"]), **versions}
        artefact.write(folder, plan, options, self.captured, self.facts, versions)
        row = replace(
            row,
            build_s=time.monotonic() - began,
            versions=versions,
            size_bytes=artefact.size(folder),
        )
        self.rows[plan.id] = row
        self._verify(plan, row, folder, processes)

    def _verify(
        self, plan: BuildPlan, row: ExportCandidate, folder: Path, processes: ExitStack
    ) -> None:
        """Load the artefact in its own process, which stays for the measurement if it passes."""
        compiled = str((self.folder / "scratch" / plan.id).resolve())
        order = self._order("serve", folder=str(folder.resolve()), compiled=compiled)
        with ExitStack() as own:
            process = own.enter_context(worker.start(self.settings.python, order, self._memory()))
            process.wait(LOAD_LIMIT_S)
            loaded = process.ask({"do": "load"}, LOAD_LIMIT_S)
            found = process.ask({"do": "verify", "precision": plan.precision.value}, VERIFY_LIMIT_S)
            guard = ExportGuard(**{**found, "batch_sizes": tuple(found["batch_sizes"])})
            state = BuildState.VERIFIED if guard.passed else BuildState.REFUSED
            self.rows[plan.id] = row = replace(
                row,
                state=state,
                reason=guard.reason,
                guard=guard,
                load_s=loaded["load_s"],
                first_call_ms=loaded["first_call_ms"],
            )
            if guard.passed:
                self.verified.append(Attempt(plan, row, folder, TimedBuild(plan.id, process)))
                processes.push(own.pop_all())

    def measure(self) -> None:
        """Time the verified builds, in turns."""
        self.tell(f"time of {len(self.verified)} builds in turn")
        builds = [attempt.timed for attempt in self.verified]
        batch = int(self.facts["single_rows"])
        seconds = self.settings.measure_s
        self.rounds = timing.in_rounds(builds, lambda build: batch, seconds)
        if self.captured["batch_dynamic"]:
            self.tell("larger batches")
            alive = [build for build in builds if build.medians(batch) and not build.broken]
            first_ms = {build.id: min(build.medians(batch)) for build in alive}
            timing.over_batches(alive, seconds, first_ms)
            if self.settings.goal is Goal.THROUGHPUT:
                timing.in_rounds([b for b in alive if not b.broken], _best_batch, seconds)
        eager = next((a.timed.medians(batch) for a in self.verified if a.plan.id == EAGER), [])
        for attempt in self.verified:
            self._account(attempt, batch, eager)

    def _account(self, attempt: Attempt, batch: int, eager: list[float]) -> None:
        """Put a build's measurements into its row."""
        timed = attempt.timed
        latency = timing.latency(timed, batch)
        row = self.rows[timed.id]
        if latency is None:
            row = replace(row, state=BuildState.FAILED, reason=timed.broken or "no call was timed")
            self.rows[timed.id] = row
            return
        ratio = timing.ratio(eager, timed.medians(batch))
        try:
            peak = timed.worker.ask({"do": "peak"}, QUICK_S)["peak_bytes"]
        except Broken:
            peak = None
        self.rows[timed.id] = replace(
            row,
            latency=latency,
            batches=tuple(timed.points),
            peak_bytes=peak,
            speedup=ratio[0] if ratio else None,
            speedup_interval=ratio[1] if ratio else None,
        )

    def result(self, wall_s: float) -> ExportResult:
        """Choose a build and write the artefact."""
        contenders = [
            self._contender(a) for a in self.verified if self.rows[a.plan.id].latency is not None
        ]
        chosen = choosing.choose(contenders, self.settings.goal)
        if chosen is not None:
            name, self.why = chosen
            kept = choosing.by_id(contenders)[name]
            for item in contenders:
                reason = "" if item is kept else choosing.why_not(item, kept, self.settings.goal)
                state = BuildState.CHOSEN if item is kept else BuildState.VERIFIED
                self.rows[item.id] = replace(self.rows[item.id], state=state, reason=reason)
        costs = {item.id: item.cost for item in contenders}
        rows = sorted(
            self.rows.values(),
            key=lambda row: (ORDER.index(row.state), costs.get(row.id, 0.0), row.id),
        )
        result = self._result(tuple(rows), chosen[0] if chosen else None, wall_s)
        if result.chosen is not None:
            built = next(a.folder for a in self.verified if a.plan.id == result.chosen)
            more = {"notes": list(result.notes), "metric": result.metric, "why": result.why}
            assert result.winner is not None
            artefact.keep(built, self.settings.out, result.winner, result.candidates, more)
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        return result

    def _contender(self, attempt: Attempt) -> choosing.Contender:
        row, timed = self.rows[attempt.plan.id], attempt.timed
        plan = attempt.plan
        batch = int(self.facts["single_rows"])
        rounds = timed.medians(batch)
        if self.settings.goal is Goal.SIZE:
            cost, rounds = float(row.size_bytes or 0), []
        elif self.settings.goal is Goal.THROUGHPUT and timed.points:
            size = _best_batch(timed)
            most = max(point.samples_per_s for point in timed.points)
            rounds = [ms / size for ms in timed.medians(size)] or [1e3 / most]
            cost = sorted(rounds)[len(rounds) // 2]
        else:
            assert row.latency is not None
            cost = row.latency.p50_ms
        return choosing.Contender(plan.id, plan.order, plan.variant.title, cost, tuple(rounds))

    def _result(
        self, rows: tuple[ExportCandidate, ...], chosen: str | None, wall_s: float
    ) -> ExportResult:
        captured, facts = self.captured, self.facts
        return ExportResult(
            model=captured["model"],
            parameters=captured["parameters"],
            source=captured["source"],
            weights=captured["weights"],
            inputs=artefact.specs(captured["inputs"]),
            outputs=artefact.specs(captured["outputs"]),
            batch_sizes=tuple(captured["batch_sizes"]),
            goal=self.settings.goal,
            candidates=rows,
            chosen=chosen,
            why=self.why,
            artefact=self.settings.out if chosen is not None else None,
            metric=captured.get("metric"),
            notes=(
                *captured.get("notes", ()),
                *notes.of(captured, facts, self.rounds, self.rows[EAGER].latency),
            ),
            machine={
                "cores": self.threads,
                **{name: facts[name] for name in ("torch", "python", "isa", "device", "system")},
                "architecture": facts["architecture"],
            },
            run_folder=self.folder,
            wall_s=wall_s,
        )


def _best_batch(build: TimedBuild) -> int:
    return max(build.points, key=lambda point: point.samples_per_s).batch
