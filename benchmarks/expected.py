"""Make the table of how boosts have fared from the results of other benchmarks.

python benchmarks/expected.py   # writes src/flatout_agent/live/records.py

Counted is each boost that was compared by itself, alone or beside others, in `hand-*.json` (CPUs)
and `gpu/tried.json` (an H200). What the Guard refused or what did not apply says nothing here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import record

from flatout_agent.boosts import names
from flatout_agent.live.candidates import USUAL

TABLE = record.REPOSITORY / "src" / "flatout_agent" / "live" / "records.py"
BOOSTS = frozenset(names())
"""Results name boosts that have been removed since, too."""
PRIOR_CASES = 2
"""What is assumed of a boost without a case has the weight of so many."""
HEAD = '''"""How boosts have fared, by device. Made by benchmarks/expected.py: do not edit."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """How a boost fared where it applied and was compared."""

    cases: int
    helped: float
    """Share of the cases in which it was kept."""
    harm: float
    """How much slower it made the other cases on average: 0.1 is 10 %."""


RECORDS: dict[str, dict[str, Record]] = {
'''


def main() -> None:
    TABLE.write_text(table(cases(record.RESULTS)), encoding="utf-8")


Cases = dict[str, dict[str, list[tuple[bool, float]]]]
"""Device -> boost -> whether it was kept, and its speed-up."""


def cases(results: Path) -> Cases:
    """All that was tried."""
    found: Cases = defaultdict(lambda: defaultdict(list))
    for path in sorted(results.glob("hand-*.json")):
        for row in json.loads(path.read_text())["figures"]["rows"].values():
            _add(found["cpu"], row["tried"])
    for tried in json.loads((results / "gpu" / "tried.json").read_text())["scripts"].values():
        _add(found["cuda"], tried)
    return found


def _add(found: dict[str, list[tuple[bool, float]]], tried: dict[str, Any]) -> None:
    gains = [gain for _, gain in tried.values()]
    for boost, (verdict, gain) in tried.items():
        # The same figure again is that of a group.
        alone = gain is not None and gains.count(gain) == 1
        if boost in BOOSTS and alone and verdict in ("kept", "slower"):
            found[boost].append((verdict == "kept", gain))


def table(found: Cases) -> str:
    """The module's text."""
    lines = []
    for device, boosts in sorted(found.items()):
        lines.append(f'    "{device}": {{')
        for boost, rows in sorted(boosts.items()):
            helped = [USUAL.helped] * PRIOR_CASES + [float(kept) for kept, _ in rows]
            slower = [max(0.0, 1 / gain - 1) for kept, gain in rows if not kept]
            harm = fmean([USUAL.harm] * PRIOR_CASES + slower)
            figures = f"{len(rows)}, {fmean(helped):.2f}, {harm:.3f}"
            lines.append(f'        "{boost}": Record({figures}),')
        lines.append("    },")
    return HEAD + "\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
