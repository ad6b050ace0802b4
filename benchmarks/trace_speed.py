"""How fast traces are read and analysed, against HolisticTraceAnalysis on the same files.

python benchmarks/trace_speed.py [--events 1000000] [--rounds 3]

The real traces under tests/traces as they are, and one of them repeated step after step until
it has that many events. Each tool reads the file and says where the time of the device went,
in a process of its own; flatout's is the whole Profile: places, tables, timeline.

Needs `pip install --no-deps holistictraceanalysis==0.5.0` and pandas.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

TRACES = Path(__file__).parent.parent / "tests" / "traces"
REAL = ("v100_train", "a100_train", "a100_nccl")
REPEATED = "v100_train"
OURS = """
import json, resource, sys, time
from pathlib import Path
from flatout.profiling.trace.analysing import analyse
from flatout.profiling.trace.reading import read
begin = time.perf_counter()
(recording,) = read([Path(sys.argv[1])])
reading = time.perf_counter() - begin
profile = analyse(recording)
whole = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"s": whole, "read_s": reading, "peak_mib": peak / 1024,
                  "events": recording.seen, "truncated": recording.truncated}))
"""
THEIRS = """
import json, logging, resource, sys, time, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
found = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
reading = time.perf_counter() - begin
found.get_temporal_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
whole = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"s": whole, "read_s": reading, "peak_mib": peak / 1024}))
"""


def measured(program: str, path: Path, rounds: int) -> dict[str, Any]:
    """Medians over fresh processes."""
    found = []
    for _ in range(rounds):
        command = [sys.executable, "-c", program, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        key: statistics.median(one[key] for one in found) if key != "truncated" else found[0][key]
        for key in found[0]
    }


def repeated(name: str, events: int, folder: Path) -> Path:
    """The trace again and again, each time later and with new numbers, as plain JSON."""
    whole = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
    one = whole.pop("traceEvents")
    times = [event["ts"] for event in one if event.get("ph") == "X"]
    length, path = max(times) - min(times) + 10_000, folder / f"{name}-repeated.json"
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(whole)[:-1] + ', "traceEvents": [\n')
        for number in range(-(-events // len(one))):
            for at, event in enumerate(one):
                file.write(",\n" if number or at else "")
                file.write(json.dumps(later(event, number * length, number * 10_000_000)))
        file.write("]}")
    return path


def later(event: dict[str, Any], us: float, more: int) -> dict[str, Any]:
    """The same event `us` later, its numbers `more` higher."""
    found = {**event, "ts": event["ts"] + us} if "ts" in event else dict(event)
    args = dict(event.get("args") or {})
    for key in ("correlation", "External id"):
        if isinstance(args.get(key), int):
            args[key] += more
    if args:
        found["args"] = args
    return found


def compared(path: Path, rounds: int, theirs_rounds: int) -> dict[str, Any]:
    """Both tools on this file."""
    ours = measured(OURS, path, rounds)
    assert not ours["truncated"]
    theirs = measured(THEIRS, path, theirs_rounds)
    return {
        "events": ours["events"],
        "file_mib": path.stat().st_size / 2**20,
        "flatout_s": ours["s"],
        "flatout_read_s": ours["read_s"],
        "flatout_events_per_s": ours["events"] / ours["s"],
        "flatout_peak_mib": ours["peak_mib"],
        "hta_s": theirs["s"],
        "hta_read_s": theirs["read_s"],
        "hta_events_per_s": ours["events"] / theirs["s"],
        "hta_peak_mib": theirs["peak_mib"],
        "times_faster": theirs["s"] / ours["s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    figures = {
        name: compared(TRACES / f"{name}.json.gz", args.rounds, args.rounds) for name in REAL
    }
    with tempfile.TemporaryDirectory() as folder:
        plain = repeated(REPEATED, args.events, Path(folder))
        figures[f"{REPEATED} repeated"] = compared(plain, args.rounds, 1)
        packed = plain.with_suffix(".json.gz")
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
            while piece := source.read(1 << 20):
                target.write(piece)
        figures[f"{REPEATED} repeated, packed"] = compared(packed, args.rounds, 1)
    record.write("trace_speed", figures)


if __name__ == "__main__":
    main()
