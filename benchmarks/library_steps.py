"""What each line gains on the way from the naive loop to flatout's, interleaved, on the CPU.

python benchmarks/library_steps.py           # about six minutes on two cores; updates the page
python benchmarks/library_steps.py --quick   # only whether all rungs run and learn alike
python benchmarks/library_steps.py --page    # only the page's table, from the committed results
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import record
from loops import arena
from loops.ladder import RUNGS

PAGE = Path(__file__).parent.parent / "docs/from-the-naive-loop.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
WARM = {"resnet": 24, "gpt": 6}
STEPS = {"resnet": 5, "gpt": 3}
ROUNDS = 12
TOLERANCE = 0.10
"""As in library.py, for the mean loss of the last third of the steps."""
LINES = {
    "naive": "the naive loop",
    "loader": "1. flatout's loader",
    "step": "2. one call for the step",
    "layout": '3. without `layout="contiguous"`',
    "precision": '4. without `precision="fp32"`',
    "compile": "5. with `compile=True`",
}
TITLES = {"resnet": "ResNet, pictures", "gpt": "GPT, text"}


def measure(job: str, quick: bool, logs: Path) -> dict[str, Any]:
    """All rungs of a job, each against the one before and against the naive loop."""
    loops = [f"ladder:{rung}" for rung in RUNGS[job]]
    with arena.contenders(job, loops, quick, logs) as started:
        if quick:
            arena.rounds(started, warm=12, count=2, steps=3)
        else:
            arena.rounds(started, WARM[job], ROUNDS, STEPS[job])
        gap = arena.disagreement(started)
        rungs: dict[str, Any] = {}
        before = naive = started[0]
        for rung, one in zip(RUNGS[job], started, strict=True):
            gains = {"gain": arena.ratio(before, one), "in_all": arena.ratio(naive, one)}
            rungs[rung] = {**arena.summary(one), **gains}
            before = one
        if gap > TOLERANCE:
            raise SystemExit(f"{job}: the rungs do not learn alike: {gap:.3f} {rungs}")
    return {"rungs": rungs, "loss_disagreement": gap, "loss_tolerance": TOLERANCE}


def table(document: dict[str, Any]) -> str:
    """The page's table: step time, gain of the line, gain in all, for each job."""
    jobs = [job for job in TITLES if job in document["figures"]]
    machine = document["machine"]
    head = [f"{TITLES[job]}: step | line | in all" for job in jobs]
    lines = [
        f"| | {' | '.join(head)} |",
        "|---|" + "---|---|---|" * len(jobs),
    ]
    for rung, title in LINES.items():
        cells = [cell for job in jobs for cell in _cells(document["figures"][job]["rungs"], rung)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    where = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
    source = "`benchmarks/library_steps.py`, `benchmarks/results/library_steps.json`"
    return "\n".join([*lines, "", f"Measured on {where}, {document['date'][:10]}: {source}."])


def _cells(rungs: dict[str, Any], rung: str) -> list[str]:
    found = rungs.get(rung)
    if found is None:
        return ["", "", ""]
    if rung == "naive":
        return [f"{found['step_ms']:.0f} ms", "", "1.00x"]
    gains = [f"{found[name]['ratio']:.2f}x" for name in ("gain", "in_all")]
    return [f"{found['step_ms']:.0f} ms", *gains]


def with_table(page: str, found: str) -> str:
    """The page with what stands between the two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{after}"


def write_page(path: Path = PAGE) -> None:
    """Put the table of the committed results into the page."""
    document = json.loads((record.RESULTS / "library_steps.json").read_text(encoding="utf-8"))
    page = with_table(path.read_text(encoding="utf-8"), table(document))
    path.write_text(page, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(RUNGS))
    parser.add_argument("--quick", action="store_true", help="tiny jobs; nothing is written")
    parser.add_argument("--page", action="store_true", help="only write the page's table")
    arguments = parser.parse_args()
    if arguments.page:
        return write_page()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for job in [arguments.only] if arguments.only else RUNGS:
            figures[job] = measure(job, arguments.quick, Path(folder))
            for rung, found in figures[job]["rungs"].items():
                gain, whole = found["gain"]["ratio"], found["in_all"]["ratio"]
                sys.stdout.write(f"{job:7} {rung:10} {gain:.2f}x, in all {whole:.2f}x\n")
                sys.stdout.flush()
    if arguments.quick:
        return None
    if arguments.only:
        record.write(f"library_steps-{arguments.only}", figures)
        return None
    record.write("library_steps", figures)
    return write_page()


if __name__ == "__main__":
    main()
