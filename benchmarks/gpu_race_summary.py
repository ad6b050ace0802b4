"""What all parts of `gpu.py race` come to, for the screen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from gpu_race import JOBS, KINDS

WON = 1.02
"""From this gain on a boost has won."""


def summary(parts: Mapping[str, Any]) -> list[str]:
    """A line per script, the share of the hand over all of them, and a line per boost."""
    heads = f"{'written':>9}{'hand':>9}{'best forced':>20}{'tuned':>9}{'of the hand':>13}"
    lines = [f"{'ms a step':16}{heads}"]
    shares: dict[str, list[float]] = {"best forced": [], "tuned": []}
    for name in JOBS:
        times, tuned = _times(parts, name), _times(parts, f"{name}_tune")
        if "written" not in times:
            continue
        forced = {way: ms for way, ms in times.items() if way not in ("written", "hand")}
        best = min(forced, key=forced.__getitem__, default="")
        if best and "hand" in times:
            shares["best forced"].append(times["hand"] / forced[best])
        hand, found = _hand(times, tuned), tuned.get(_way(parts, f"{name}_tune"))
        if hand and found:
            shares["tuned"].append(hand / found)
        share = f"{hand / found:.2f}" if hand and found else ""
        told = f"{best} {forced[best]:.2f}" if best else ""
        lines.append(
            f"{name:16}{_ms(times.get('written'))}{_ms(times.get('hand'))}{told:>20}"
            f"{_ms(found)}{share:>13}"
        )
    for way, each in shares.items():
        if each:
            mean = statistics.geometric_mean(each)
            lines.append(f"{way}: {mean:.2f} of the hand, geometric mean of {len(each)}")
    return lines + _boost_lines(parts)


def _hand(times: Mapping[str, float], tuned: Mapping[str, float]) -> float | None:
    """The time by hand beside the tuning; where there was none left for it, by that of the race."""
    if "hand" in tuned or "hand" not in times or "written" not in tuned:
        return tuned.get("hand")
    return times["hand"] * tuned["written"] / times["written"]


def _way(parts: Mapping[str, Any], part: str) -> str:
    """What a user has after the tuning: the script as it was, where it found nothing."""
    return "plan" if ((parts.get(part) or {}).get("figures") or {}).get("boosts") else "written"


def _boost_lines(parts: Mapping[str, Any]) -> list[str]:
    """What each boost gave, alone and beside the others, over all scripts."""
    found: dict[str, dict[str, list[float]]] = {}
    idle: dict[str, int] = {}
    for name in JOBS:
        for kind in KINDS[2:]:
            figures = (parts.get(name + kind) or {}).get("figures") or {}
            where = "alone" if kind.startswith("_alone") else "beside the others"
            for boost, gain in figures.get("gains", {}).items():
                gained = found.setdefault(boost, {})
                if figures["took"][boost] == "engaged":
                    gained.setdefault(where, []).append(gain)
                elif where == "alone":
                    idle[boost] = idle.get(boost, 0) + 1
    lines = []
    for boost, kinds in sorted(found.items()):
        told = [
            f"{where} {statistics.geometric_mean(gained):.2f}x, won {_won(gained)}"
            for where, gained in kinds.items()
        ]
        told += [f"idle in {idle[boost]}"] if boost in idle else []
        lines.append(f"{boost:20}{'; '.join(told)}")
    return lines


def _won(gained: list[float]) -> str:
    return f"{sum(gain >= WON for gain in gained)} of {len(gained)}"


def _times(parts: Mapping[str, Any], part: str) -> dict[str, float]:
    """Way -> the milliseconds of its step."""
    figures = (parts.get(part) or {}).get("figures") or {}
    return {way: row["ms"] for way, row in figures.get("rows", {}).items() if "ms" in row}


def _ms(value: float | None) -> str:
    return f"{value:>9.2f}" if value is not None else " " * 9
