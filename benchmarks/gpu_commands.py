"""flatout's commands on a CUDA machine, as a user gives them: one part per process.

`python gpu_commands.py <part>` prints what came of it as a line of JSON. Each command is also held
to its own rules: an exit code that it documents, JSON that can be read, nothing of a traceback.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuning import summary

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
RECIPES = EXAMPLES / "recipes"
NANO_GPT = HERE.parent / ".gpu-nanogpt"
"""A checkout of nanoGPT, put there beforehand."""
LEAST = 0.99


@dataclass(frozen=True)
class Job:
    """A training script, as long as a tuning needs it."""

    script: Path
    options: tuple[str, ...]
    small: tuple[str, ...]
    """Options of a dry run."""
    budget_s: int = 70
    goal: float | None = None

    def words(self, dry: bool) -> list[str]:
        return [str(self.script), *(self.small if dry else self.options)]


JOBS = {
    "text": Job(
        EXAMPLES / "text" / "train.py",
        ("--layers=12", "--heads=12", "--width=768", "--context=1024", "--vocabulary=50304"),
        ("--layers=1", "--heads=2", "--width=32", "--context=32", "--steps=2000"),
    ),
    "nano_gpt": Job(
        NANO_GPT / "train.py",
        ("--dataset=flatout", "--max_iters=2000", "--eval_interval=2000", "--eval_iters=2",
         "--gradient_accumulation_steps=4"),
        (),
        budget_s=90,
        goal=1.25,
    ),
    "images": Job(
        EXAMPLES / "images" / "train.py",
        ("--model=resnet50", "--size=224", "--batch-size=128", "--synthetic"),
        ("--model=resnet18", "--size=32", "--batch-size=8", "--synthetic"),
    ),
    "bert": Job(
        EXAMPLES / "bert" / "train.py",
        ("--layers=12", "--heads=12", "--width=768", "--context=128", "--batch-size=64",
         "--steps=5000"),
        ("--layers=1", "--heads=2", "--width=32", "--context=16", "--steps=2000"),
    ),
    "recipe_gpt": Job(RECIPES / "gpt3_small.py", ("--small",), ("--small",), budget_s=45),
    "recipe_bert": Job(RECIPES / "bert_large.py", ("--small",), ("--small",), budget_s=45),
    "recipe_resnet": Job(RECIPES / "resnet50.py", ("--small",), ("--small",), budget_s=45),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--small", action="store_true", help="tiny, to see that it runs")
    arguments = parser.parse_args()
    figures = PARTS[arguments.part](arguments.part, arguments.small)
    print(json.dumps(figures), flush=True)
    if problem := figures.get("problem"):
        sys.exit(problem)


def parts(dry: bool) -> list[tuple[Any, ...]]:
    """For `gpu.py`: name, command, limit in seconds, words. The most valuable first."""
    tuned = [f"tune_{name}" for name in (["text"] if dry else JOBS)]
    names = ["doctor", *tuned[:4], "live_text", "bench", "profile_text", *tuned[4:]]
    script, small = str(HERE / "gpu_commands.py"), ("--small",) if dry else ()
    return [(name, (script, name, *small), _limit_s(name), words) for name in names]


def _limit_s(part: str) -> float:
    command, _, job = part.partition("_")
    if command == "tune":
        return JOBS[job].budget_s + 50.0
    return {"doctor": 40.0, "bench": 90.0}.get(command, 100.0)


def words(figures: dict[str, Any]) -> str:
    return str(figures.get("words", ""))


def doctor(part: str, small: bool) -> dict[str, Any]:
    """What is found on the machine, and how long it takes."""
    seconds, document, problem = answer("doctor", "--json", codes=(0, 1, 2))
    findings = [finding.get("code") for finding in document.get("findings", [])]
    told = f"{seconds:.1f} s, findings: {', '.join(map(str, findings)) or 'none'}"
    return {"seconds": seconds, "findings": findings, "problem": problem, "words": told}


def bench(part: str, small: bool) -> dict[str, Any]:
    """The ceilings of this hardware beside its data sheet."""
    options = ("--only", "memory-cpu", "--device", "cpu") if small else ()
    seconds, document, problem = answer("bench", "--json", "--quick", *options, codes=(0, 1))
    told = f"{seconds:.1f} s, {len(document.get('ceilings', []))} ceilings"
    return {"seconds": seconds, "document": document, "problem": problem, "words": told}


def profile(part: str, small: bool) -> dict[str, Any]:
    """Where a step's time goes, and what is found."""
    job = JOBS[part.partition("_")[2]]
    options = ("--stop", "--fail-above", "100%", *(("--no-bench",) if small else ()))
    seconds, document, problem = answer(
        "profile", "--json", *options, *job.words(small), codes=(0,)
    )
    findings = [finding.get("code") for finding in document.get("findings", [])]
    told = f"{seconds:.1f} s, findings: {', '.join(map(str, findings)) or 'none'}"
    return {"seconds": seconds, "document": document, "problem": problem, "words": told}


def live(part: str, small: bool) -> dict[str, Any]:
    """The end of what `run --live` tells in a whole training."""
    job = JOBS[part.partition("_")[2]]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = flatout("run", "--live", *job.words(small), folder=folder)
        seconds = round(time.perf_counter() - began, 1)
    told = [line for line in done.stderr.splitlines() if line.startswith("flatout:")]
    problem = None if done.returncode == 0 else f"exit code {done.returncode}"
    problem = problem or trouble(done.stderr)
    return {
        "seconds": seconds,
        "lines": told[-30:],
        "problem": problem,
        "words": "".join(told[-1:]),
    }


def tune(part: str, small: bool) -> dict[str, Any]:
    """What a tuning finds, confirmed in fresh processes; to have nothing to try is no error."""
    job = JOBS[part.partition("_")[2]]
    if not job.script.exists():
        return {"problem": f"no checkout of nanoGPT in {NANO_GPT.name}"}
    with tempfile.TemporaryDirectory() as folder:
        place, words = folder, job.words(small)
        if job.script.parent == NANO_GPT:  # it looks for its data below the folder that it is in
            place, words = nano_gpt_data(), [*words, f"--out_dir={folder}"]
        options = (f"--budget={20 if small else job.budget_s}s", f"--plan={folder}/flatout.toml")
        seconds, document, problem = answer(
            "tune", "--json", *options, *words, codes=(0, 1, 2), folder=place
        )
    if not problem and document["faults"]:
        problem = f"errors of flatout's own: {document['faults']}"
    if problem:
        return {"seconds": seconds, "problem": problem}
    code = 0 if document["speedup"] else 1
    figures = summary({**document, "seconds": seconds, "exit_code": code})
    speedup = document["speedup"] or 1.0
    if speedup < LEAST:
        problem = f"a plan that makes it slower: {speedup}x"
    goal = f", goal {job.goal}x" if job.goal else ""
    told = f"{speedup}x{goal}, {', '.join(figures['kept']) or 'nothing kept'}"
    return {**figures, "script": Path(words[0]).name, "problem": problem, "words": told}


def nano_gpt_data() -> str:
    """Python's library as a text for nanoGPT, a byte a token; the folder to be in."""
    import sysconfig

    import numpy as np

    data = NANO_GPT / "data" / "flatout"
    data.mkdir(parents=True, exist_ok=True)
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = np.frombuffer(b"".join(file.read_bytes() for file in library), dtype=np.uint8)
    split = len(text) * 9 // 10
    text[:split].astype(np.uint16).tofile(data / "train.bin")
    text[split:].astype(np.uint16).tofile(data / "val.bin")
    return str(NANO_GPT)


def answer(
    *command: str, codes: tuple[int, ...], folder: str | None = None
) -> tuple[float, dict[str, Any], str | None]:
    """(seconds, the JSON document on stdout, what is wrong with it)."""
    began = time.perf_counter()
    done = flatout(*command, folder=folder)
    seconds = round(time.perf_counter() - began, 1)
    sys.stderr.write(done.stderr)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return seconds, {}, f"no JSON, exit code {done.returncode}: {done.stderr.strip()[-300:]}"
    problem = None if done.returncode in codes else f"exit code {done.returncode}"
    return seconds, document, problem or trouble(done.stderr)


def flatout(*command: str, folder: str | None) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "flatout", *command]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)


def trouble(printed: str) -> str | None:
    """An error that was printed, whatever the exit code."""
    return "a traceback on stderr" if "Traceback (most recent call last)" in printed else None


PARTS: dict[str, Callable[[str, bool], dict[str, Any]]] = {
    "doctor": doctor,
    "bench": bench,
    **{f"tune_{name}": tune for name in JOBS},
    **{f"live_{name}": live for name in JOBS},
    **{f"profile_{name}": profile for name in JOBS},
}


if __name__ == "__main__":
    main()
