"""Strangers' training scripts at the size of a GPU: as written, by hand, with forced plans, tuned.

`python gpu_race.py gpt` times race/gpt.py, its version by hand and the same script under three
plans, all in turn, each from outside by `step_clock.py`. `gpt_tune` lets `flatout tune` find the
plan. `gpt_alone_1` and `_2` add each boost that applies by itself, `gpt_without_1` and `_2` take
each out of all that go together. A line of JSON is printed after each run; what fails tells why in
its row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tuning import tune

HERE = Path(__file__).parent
FOLDER = HERE / "race"
ROUNDS = 2
ENDLESS = 100_000
"""Steps of a script that `step_clock.py` ends."""
LIMIT_S = 185.0
"""Of a part: three go into one call."""
OWN_LIMIT_S = 172.0
"""After that a part begins nothing."""
LAP_S = 100.0
"""No run may take longer."""
FEWEST_S = 12.0
"""A run is not begun with less."""
BUDGET_S = 120
PLANS: dict[str, tuple[str, ...]] = {
    "compiled": ("bf16-autocast", "fused-optimizer", "compile"),
    "graphs": ("bf16-autocast", "fused-optimizer", "cuda-graphs"),
}
"""Those that are forced, beside all that apply."""
Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Job:
    timed_s: float = 3.0
    """Seconds of steps in each run."""
    skipped: int = 10
    """Steps before these."""


JOBS = {
    "gpt": Job(),
    "bert_trainer": Job(),
    "jpeg_folder": Job(4.0, 20),  # an epoch has 16: what is kept of the first one shows after it
    "lstm_words": Job(),
    "gan": Job(),
    "diffusion": Job(),
    "table_mlp": Job(),
    "lit_images": Job(),
}
KINDS = ("", "_tune", "_alone_1", "_alone_2", "_without_1", "_without_2")
DRY = "table_mlp"
"""Of this a dry run walks all kinds of parts, of the others the first."""


@dataclass(frozen=True)
class Way:
    """One of the ways in which a script is run."""

    script: Path
    plan: Path | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[name + kind for name in JOBS for kind in KINDS])
    parser.add_argument("--small", action="store_true", help="tiny, to see that it runs")
    arguments = parser.parse_args()
    name = next(name for name in sorted(JOBS, key=len) if arguments.part.startswith(name))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)  # the script's place, for all that flatout does
        course = Course(name, arguments.small, Path(folder))
        for figures in of_part(course, arguments.part.removeprefix(name)):
            print(json.dumps(figures), flush=True)
    if problem := figures.get("problem"):
        sys.exit(problem)


def parts(dry: bool) -> list[tuple[Any, ...]]:
    """For `gpu.py`: name, command, limit in seconds, words, least seconds. First all races, then
    what is tuned, then what each boost gives."""
    script, small = str(Path(__file__)), ("--small",) if dry else ()
    return [
        (name + kind, (script, name + kind, *small), LIMIT_S, words, 0.0 if dry else LIMIT_S)
        for kind in KINDS
        for name in JOBS
        if not dry or not kind or name == DRY
    ]


class Course:
    """One script, a folder to be in, and what is left of the time."""

    def __init__(self, name: str, small: bool, folder: Path) -> None:
        self.job, self.small, self.folder = JOBS[name], small, folder
        self.script = FOLDER / f"{name}.py"
        self.by_hand = FOLDER / f"{name}_by_hand.py"
        self.end = time.monotonic() + OWN_LIMIT_S
        self.rounds = 1 if small else ROUNDS

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def words(self, script: Path) -> list[str]:
        return [str(script), "--steps", str(ENDLESS), *(["--small"] if self.small else [])]

    def lap(self, way: Way) -> dict[str, Any]:
        """One run: its mean step, or why it failed; with a plan, what became of each boost."""
        clock = self.folder / "clock.json"
        clock.unlink(missing_ok=True)
        timed_s, skipped = (0.3, 3) if self.small else (self.job.timed_s, self.job.skipped)
        words = [str(HERE / "step_clock.py"), str(timed_s), *self.words(way.script)]
        if way.plan is not None:
            words = ["-m", "flatout", "run", "--json", f"--plan={way.plan}", *words]
        environment = {**os.environ, "STEP_CLOCK": str(clock), "STEP_CLOCK_SKIP": str(skipped)}
        code, out, err = finished([sys.executable, *words], environment, min(LAP_S, self.left_s))
        sys.stderr.write(err)
        if code is None:
            return {"failed": f"took more than {LAP_S:.0f} s, or all that was left"}
        if not clock.exists():
            return {"failed": f"exit code {code}: {last_line(err)}"}
        told: dict[str, Any] = json.loads(clock.read_text())
        return told | ({"boosts": became(out)} if way.plan is not None else {})

    def plan(self, boosts: Mapping[str, Any], name: str) -> Way:
        """The script under a plan that holds these boosts, id -> parameters."""
        from flatout.nouns.plan import Plan, PlannedBoost
        from flatout.tuning import plan_file

        path = self.folder / f"{name}.toml"
        planned = tuple(PlannedBoost(boost, params) for boost, params in boosts.items())
        plan_file.write(Plan(planned, job=self.facts()), path)
        return Way(self.script, path)

    def facts(self) -> Any:
        """What flatout sees of the script, which says what applies; looked at once on a machine."""
        from flatout.knowledge import jobs
        from flatout.measuring import trial
        from flatout.running.one.command import resolve, script_sha256

        which = script_sha256(self.script), version("torch"), "small" if self.small else "large"
        kept = Path(tempfile.gettempdir()) / f"race-{'-'.join(map(str, which))}.json"
        with contextlib.suppress(OSError, ValueError):  # of another version, or half written
            return jobs.facts(json.loads(kept.read_text()))
        bench = trial.Bench(
            resolve(self.words(self.script)), self.folder / "look", max_steps=8, window_s=0.5
        )
        seen = trial.run(bench, trial.FIRST, (), None, min(LAP_S, self.left_s))
        if seen.process is None or seen.process.facts is None:
            raise RuntimeError(f"flatout did not see what the script is: {seen.error}")
        kept.write_text(json.dumps(jobs.values(seen.process.facts)))
        return seen.process.facts

    def applicable(self) -> dict[str, Any]:
        """Boosts that apply, the likeliest gain first, with the parameters tried first."""
        from flatout.knowledge import boosts as known
        from flatout.tuning.candidates import Allowance, applicable

        return {
            boost.id: boost.params
            for _, boost in applicable(self.facts(), Allowance())
            if not (self.small and known.get(boost.id).compiles)  # a minute of C++
        }


def together(boosts: Mapping[str, Any]) -> dict[str, Any]:
    """Those that can be on at the same time: of two that cannot, the one in the plan "compiled",
    else the one that promises more."""
    from flatout.knowledge import boosts as known

    chosen: dict[str, Any] = {}
    for boost in sorted(boosts, key=lambda boost: boost not in PLANS["compiled"]):
        about = known.get(boost)
        if not (about.conflicts | set(about.covered_by)) & set(chosen):
            chosen[boost] = boosts[boost]
    return chosen


def race(course: Course) -> Iterator[dict[str, Any]]:
    """As written, by hand, and under each forced plan."""
    from flatout.knowledge import boosts as known

    ways = {"written": Way(course.script), "hand": Way(course.by_hand)}
    first: Rows = {}
    for first in in_turn(course, ways, 1):
        yield {"rows": first}
    for name, ids in PLANS.items():
        kept = [boost for boost in ids if boost != "compile" or not course.small]
        ways[name] = course.plan({boost: known.get(boost).defaults for boost in kept}, name)
    ways["all"] = course.plan(together(course.applicable()), "all")
    for rows in in_turn(course, ways, course.rounds, first):
        yield {"rows": rows, **problem(rows, "written")}


def tuned(course: Course) -> Iterator[dict[str, Any]]:
    """What a tuning finds, then its plan, the hand and the script as written in turn."""
    first: Rows = {}
    for first in in_turn(course, {"written": Way(course.script)}, 1):
        yield {"rows": first}
    budget_s = 12 if course.small else BUDGET_S
    try:
        words = course.words(course.script)
        limit_s = course.left_s
        found = tune(words, course.folder, f"--budget={budget_s}s", timeout_s=limit_s)
    except (SystemExit, subprocess.TimeoutExpired) as error:
        yield {"rows": first, "problem": f"tune: {last_line(str(error))}"}
        return
    figures = {
        "told": found["speedup"],
        "seconds": round(found["seconds"], 1),
        "boosts": [boost["id"] for boost in found["boosts"]] if found["exit_code"] == 0 else [],
        "tried": {
            trial["boosts"][-1]: [trial["verdict"], trial["gain"], trial["reason"]]
            for trial in found["trials"]
            if trial["boosts"]
        },
        "notes": found["notes"],
    }
    plan = {"plan": Way(course.script, course.folder / "flatout.toml")}
    ways = {**(plan if figures["boosts"] else {}), "hand": Way(course.by_hand)}
    ways |= {"written": Way(course.script)}
    for rows in in_turn(course, ways, course.rounds, first):
        yield {"rows": rows, **figures, **problem(rows, "written")}


def alone(course: Course, half: int) -> Iterator[dict[str, Any]]:
    """Each boost by itself: every second one, so that a part has the time."""
    ways = {"written": Way(course.script)}
    for boost, params in list(course.applicable().items())[half::2]:
        ways[boost] = course.plan({boost: params}, boost)
    for rows in in_turn(course, ways, course.rounds):
        found = gains(rows, "written")
        took = {boost: rows[boost].get("boosts", {}).get(boost) for boost in found}
        yield {"rows": rows, "gains": found, "took": took, **problem(rows, "written")}
        if "failed" in rows["written"]:
            return


def without(course: Course, half: int) -> Iterator[dict[str, Any]]:
    """All that go together, and all but each one: what that one gives beside the others."""
    boosts = together(course.applicable())
    ways = {"all": course.plan(boosts, "all")}
    for boost in list(boosts)[half::2]:
        others = {other: params for other, params in boosts.items() if other != boost}
        ways[boost] = course.plan(others, f"without-{boost}")
    for rows in in_turn(course, ways, course.rounds):
        lost = {boost: round(1 / gain, 3) for boost, gain in gains(rows, "all").items()}
        took = {boost: rows["all"].get("boosts", {}).get(boost) for boost in lost}
        yield {"rows": rows, "gains": lost, "took": took, **problem(rows, "all")}
        if "failed" in rows["all"]:
            return


def of_part(course: Course, kind: str) -> Iterator[dict[str, Any]]:
    """The figures of one part, after each run."""
    if kind in ("", "_tune"):
        return tuned(course) if kind else race(course)
    half = int(kind[-1]) - 1
    return alone(course, half) if kind.startswith("_alone") else without(course, half)


def in_turn(
    course: Course, ways: Mapping[str, Way], rounds: int, rows: Rows | None = None
) -> Iterator[Rows]:
    """Run all ways once, then all again, as long as there is time; the rows after each run.

    A row that has a time from before counts as one round of its way.
    """
    rows = dict(rows or {})
    for number in range(rounds):
        for name, way in ways.items():
            row = rows.setdefault(name, {"times_ms": [], "seconds": []})
            if "failed" in row or len(row["times_ms"]) > number:
                continue
            # What was compiled in the first round is there in the second.
            if course.left_s < max([FEWEST_S, *(spent / 2 for spent in row["seconds"][-1:])]):
                row["note"] = f"no time for round {number + 1}"
                continue
            began = time.monotonic()
            add(row, course.lap(way))
            row["seconds"].append(round(time.monotonic() - began, 1))
            yield rows
    yield rows


def add(row: dict[str, Any], lap: dict[str, Any]) -> None:
    """One more run of this row's way; where it fails, what it gave before still holds."""
    if "failed" in lap:
        row["note" if row["times_ms"] else "failed"] = lap["failed"]
        return
    row["times_ms"].append(round(lap["step_ms"], 3))
    times = row["times_ms"]
    row["ms"] = round(statistics.median(times), 3)
    row["spread"] = round(max(times) / min(times) - 1, 3)
    row["steps"] = lap["steps"]
    if "boosts" in lap:
        row["boosts"] = lap["boosts"]


def finished(
    command: list[str], environment: dict[str, str], limit_s: float
) -> tuple[int | None, str, str]:
    """(exit code, None for a command that took too long; its output; its errors)."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(max(1.0, limit_s))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return code, texts[0], texts[1]


def became(printed: str) -> dict[str, str]:
    """Boost -> "engaged", or why it did not take hold, from what `flatout run --json` printed."""
    try:
        document = json.loads(printed)
    except ValueError:
        return {}
    return dict.fromkeys(document["engaged"], "engaged") | document["not_engaged"]


def last_line(text: str) -> str:
    """The last words of a program that failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it said nothing"


def gains(rows: Rows, base: str) -> dict[str, float]:
    """How many times as fast as `base` each row is."""
    if "ms" not in rows.get(base, {}):
        return {}
    times = {name: row["ms"] for name, row in rows.items() if name != base and "ms" in row}
    return {name: round(rows[base]["ms"] / ms, 3) for name, ms in times.items()}


def problem(rows: Rows, base: str) -> dict[str, str]:
    """What makes the part count as failed: there is nothing to compare the other rows with."""
    failed = rows[base].get("failed")
    return {"problem": f"{base}: {failed}"} if failed else {}


def words(figures: dict[str, Any]) -> str:
    """For the screen, after a part."""
    rows = figures["rows"]
    if "gains" in figures:
        told = [
            f"{boost} {gain:.2f}x" if figures["took"][boost] == "engaged" else f"{boost} idle"
            for boost, gain in figures["gains"].items()
        ]
        return ", ".join(told + _failed(rows))
    told = [f"{name} {row['ms']:.2f} ms" for name, row in rows.items() if "ms" in row]
    return ", ".join(told + _failed(rows))


def _failed(rows: Rows) -> list[str]:
    return [f"{name} failed" for name, row in rows.items() if "failed" in row]


if __name__ == "__main__":
    main()
