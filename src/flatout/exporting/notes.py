"""What the reader should know about an export's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.exporting.timing import RoundCount
from flatout.nouns.exported import Latency

PROVEN_ROWS = 64
"""At least this many rows should be compared."""
BUSY = 1.25
"""Ratio of the ends of eager's median interval that shows that something else is running."""


def of(
    captured: Mapping[str, Any],
    facts: Mapping[str, Any],
    rounds: RoundCount | None,
    eager: Latency | None,
) -> list[str]:
    """Notes on the capture, on what `prepare` found in it, and on the measurement."""
    notes, rows = [], int(facts["rows"])
    if rows < PROVEN_ROWS:
        notes.append(f"results were compared on {rows} samples; {PROVEN_ROWS} would be better")
    if not captured["batch_dynamic"]:
        notes.append(f"the model takes batches of {facts['single_rows']} only")
    notes += _measurement(rounds, eager)
    if facts["batch_matters"]:
        notes.append(
            "a sample's result depends on the other samples in its batch, in eager PyTorch too:"
            " batching requests changes answers"
        )
    if str(captured["weights"]) == "as made":
        notes.append("the weights are untrained")
    return notes


def _measurement(rounds: RoundCount | None, eager: Latency | None) -> list[str]:
    """What disturbed the measurement, and what that means for the figures."""
    if rounds is not None and rounds.disturbed and not rounds.left_out:
        return [
            f"in {rounds.disturbed} of {rounds.taken} rounds other programs took the cores:"
            " the figures are rough"
        ]
    if eager is not None and eager.high_ms > BUSY * eager.low_ms:
        return [
            f"the time of eager PyTorch varied between {eager.low_ms:.3g} and"
            f" {eager.high_ms:.3g} ms: something else ran here, and the figures are rough"
        ]
    if rounds is not None and rounds.disturbed:
        return [
            f"{rounds.disturbed} of {rounds.taken} rounds are left out: other programs took the"
            " cores"
        ]
    return []
