"""All that is to be seen on a machine with one CUDA device, in calls of under ten minutes.

`gpu.py tests`, `gpu.py rates`, `gpu.py commands`, `gpu.py race`. Each group is made of parts; a
part is a process of its own with a time limit, and what fails does not stop the rest.
`<group>.json` is written after each part, what the parts printed is in `<group>.txt`. Called again,
a group goes on with the parts that have not succeeded on this machine. `--dry` walks the same code
on a CPU, with small sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import record

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu"
LEAST_S = 15.0
"""A part is not begun with less time than this."""
TO_STOP_S = 8.0
"""A part that ran out of time may tell what it has within this."""
FACTS = """
import json, os, platform, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "gpu": torch.cuda.get_device_name() if cuda else None,
    "gpu_memory_bytes": torch.cuda.get_device_properties(0).total_memory if cuda else None,
    "cuda": torch.version.cuda, "torch": torch.__version__, "python": platform.python_version(),
    "cores": os.cpu_count(), "system": platform.platform(),
}))
"""


@dataclass(frozen=True)
class Part:
    name: str
    command: tuple[str, ...]
    """Arguments after Python's own name. The last line of its output that begins with "{" holds its
    figures; it may print one as soon as it has some, and better ones later."""
    limit_s: float
    shown: Callable[[dict[str, Any]], str] = lambda figures: ""
    """The figures in some words, for the screen."""
    least_s: float = 0.0
    """It is not begun with less time than this."""


@dataclass(frozen=True)
class Group:
    parts: list[Part]
    """The most valuable first."""
    side_by_side: int = 1
    """So many at once. What fails beside others is run again alone."""
    summary: Callable[[dict[str, Any]], list[str]] = lambda parts: []
    """Lines about all parts together, told at the end."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help="by default all, in turn")
    parser.add_argument("--dry", action="store_true", help="small sizes, on any machine")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="these parts alone")
    parser.add_argument("--again", action="store_true", help="also what has succeeded before")
    parser.add_argument("--seconds", type=float, default=570.0, help="for each group")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--list", action="store_true", help="name the parts")
    arguments = parser.parse_args()
    known = groups(arguments.dry)
    if wrong := set(arguments.groups) - set(known):
        parser.error(f"there is no group {', '.join(sorted(wrong))}: {', '.join(known)}")
    wanted = {name: known[name] for name in arguments.groups or known}
    names = {part.name for group in wanted.values() for part in group.parts}
    if wrong := set(arguments.only) - names:
        parser.error(f"there is no part {', '.join(sorted(wrong))}; --list names them")
    if arguments.list:
        for name, group in wanted.items():
            print(f"{name}:", *(part.name for part in group.parts))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = facts()
    if machine["gpu"] is None and not arguments.dry:
        parser.exit(2, "no CUDA device here; --dry walks the same code on a CPU\n")
    print(f"{machine['gpu'] or 'no GPU'}, torch {machine['torch']}", flush=True)
    failed = 0
    for name, group in wanted.items():
        results = Results(arguments.out, name, machine)
        parts = [part for part in group.parts if not arguments.only or part.name in arguments.only]
        runner = Runner(results, time.monotonic() + arguments.seconds)
        failed += runner.run(parts, group.side_by_side, arguments.again)
        for line in group.summary(results.parts):
            print(line, flush=True)
    return 1 if failed else 0


def groups(dry: bool) -> dict[str, Group]:
    import gpu_commands
    import gpu_launches
    import gpu_race
    import gpu_race_summary
    import gpu_rates
    import gpu_tests

    tests = [Part(*each) for each in gpu_tests.parts(dry)]
    rates = [Part(*each) for each in (*gpu_rates.parts(dry), *gpu_launches.parts(dry))]
    commands = [Part(*each) for each in gpu_commands.parts(dry)]
    return {
        "tests": Group(tests, 1 if dry else gpu_tests.SIDE_BY_SIDE),
        "rates": Group(rates),
        "commands": Group(commands),
        "race": Group(
            [Part(*each) for each in gpu_race.parts(dry)], 2 if dry else 1, gpu_race_summary.summary
        ),
    }


def facts() -> dict[str, Any]:
    """The machine. Asked in another process, which gives the device's memory back."""
    done = subprocess.run([sys.executable, "-c", FACTS], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass
class Results:
    """What the parts of one group gave: `<name>.json` and `<name>.txt` in a folder."""

    folder: Path
    name: str
    machine: dict[str, Any]
    parts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"{self.name}.json"
        try:
            before = json.loads(self.path.read_text(encoding="utf-8"))
            same = all(before["machine"][key] == self.machine[key] for key in ("gpu", "torch"))
            self.parts = before["parts"] if same else {}
        except (OSError, ValueError, KeyError):
            self.parts = {}

    def succeeded(self, part: str) -> bool:
        return part in self.parts and "failed" not in self.parts[part]

    def add(self, part: str, outcome: dict[str, Any], printed: str) -> None:
        """Keep one part's outcome, on disk, at once."""
        with self.lock:
            self.parts[part] = outcome
            document = {
                "benchmark": f"gpu {self.name}",
                "command": f"benchmarks/gpu.sh {self.name}",
                "machine": self.machine,
                "parts": self.parts,
            }
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            beside.replace(self.path)
            with self.path.with_suffix(".txt").open("a", encoding="utf-8") as file:
                file.write(f"===== {part}\n{printed}\n")


class Runner:
    """Runs parts until a moment, and tells a line of each."""

    def __init__(self, results: Results, end: float) -> None:
        self.results, self.end = results, end
        self.running: set[subprocess.Popen[bytes]] = set()
        self.interrupted = False

    def run(self, parts: list[Part], side_by_side: int, again: bool) -> int:
        """Run what has not succeeded yet; the number of parts that have not succeeded now."""
        waiting = [part for part in parts if again or not self.results.succeeded(part.name)]
        for part in parts:
            if part not in waiting:
                tell(part.name, f"before: {_words(part, self.results.parts[part.name])}")
        pool = ThreadPoolExecutor(side_by_side)
        try:
            ended = dict(zip(waiting, pool.map(self.one, waiting), strict=True))
            if side_by_side > 1:
                ended |= {part: self.one(part) for part, sound in ended.items() if not sound}
        except KeyboardInterrupt:
            self.interrupted = True
            for child in list(self.running):
                stop(child)
            pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown()
        return sum(not sound for sound in ended.values())

    def one(self, part: Part) -> bool:
        """Run one part; whether it succeeded."""
        limit_s = min(part.limit_s, self.end - time.monotonic() - TO_STOP_S)
        if self.interrupted:
            return False
        if limit_s < max(LEAST_S, part.least_s):
            tell(part.name, "not begun: no time left; call again")
            return False
        began = time.monotonic()
        failure, output, printed = self.process(part, limit_s)
        outcome: dict[str, Any] = {
            "seconds": round(time.monotonic() - began, 1),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": record.commit(),
            **({"failed": failure, "printed": printed[-3000:]} if failure else {}),
            "figures": last_figures(output),
        }
        self.results.add(part.name, outcome, printed)
        tell(part.name, f"{outcome['seconds']:.0f} s: {_words(part, outcome)}")
        return failure is None

    def process(self, part: Part, limit_s: float) -> tuple[str | None, str, str]:
        """What went wrong, if anything; the part's output; what it printed on stderr."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            command = [sys.executable, *part.command]
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
            self.running.add(child)
            try:
                code: int | None = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                stop(child)
                self.running.discard(child)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        if code is None:
            return f"took more than {limit_s:.0f} s", *texts
        return (f"exit code {code}" if code else None), *texts


def stop(child: subprocess.Popen[bytes]) -> None:
    """End it with all its children; SIGINT first, so that it tells what it has."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(TO_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def tell(part: str, words: str) -> None:
    print(f"{part:16} {words}", flush=True)


def last_figures(output: str) -> dict[str, Any] | None:
    """The last complete line of figures."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return None


def _words(part: Part, outcome: dict[str, Any]) -> str:
    words = []
    if "failed" in outcome:
        words.append(f"failed: {outcome['failed']}")
    if outcome["figures"]:
        words.append(part.shown(outcome["figures"]))
    return "; ".join(word for word in words if word) or "done"


if __name__ == "__main__":
    sys.exit(main())
