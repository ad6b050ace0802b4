"""What one boost adds to a plan: the script under the plan with it and without it, in turn.

python benchmarks/boost_alone.py indexed-rows gcn_citation fast-dropout fused-optimizer allocator

The boost, the script (of `by_hand` or `strangers`), and the other boosts of the plan. Step times
are taken from outside by `step_clock.py`. Rows of earlier runs stay.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import record
from hand import FOLDERS, step_ms

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("boost")
    parser.add_argument("script")
    parser.add_argument("others", nargs="*")
    arguments = parser.parse_args()
    (script,) = (path for folder in FOLDERS for path in folder.glob(f"{arguments.script}.py"))
    times: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        for kind, boosts in (("without", []), ("with", [arguments.boost])):
            tables = [f"[boosts.{boost}]\n" for boost in [*arguments.others, *boosts]]
            Path(folder, kind).mkdir()
            plan = "version = 1\n[boosts]\n" + "".join(tables)
            Path(folder, kind, "flatout.toml").write_text(plan)
        for _ in range(ROUNDS):
            for kind in times:
                times[kind].append(step_ms(script.resolve(), Path(folder, kind), under_plan=True))
    pairs = [a / b for a, b in zip(times["without"], times["with"], strict=True)]
    gain = statistics.median(pairs)
    rows = record.rows("boost_alone")
    rows[f"{arguments.script}, {arguments.boost}"] = {
        "tried": {arguments.boost: ["kept" if min(pairs) > 1 else "unclear", round(gain, 3)]},
        "beside": arguments.others,
        "pairs": [round(pair, 3) for pair in pairs],
        "times_ms": {kind: [round(ms, 2) for ms in all_ms] for kind, all_ms in times.items()},
    }
    record.write("boost_alone", {"rows": rows})


if __name__ == "__main__":
    main()
