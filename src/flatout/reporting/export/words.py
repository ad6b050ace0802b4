"""Words and figures of an ExportResult that screen and page share."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.nouns import units
from flatout.nouns.exported import (
    BuildPrecision,
    BuildState,
    ExportCandidate,
    ExportGuard,
    ExportResult,
    Goal,
)

STATES = {
    BuildState.CHOSEN: "kept",
    BuildState.VERIFIED: "verified",
    BuildState.REFUSED: "refused",
    BuildState.FAILED: "failed",
    BuildState.ABSENT: "absent",
    BuildState.SKIPPED: "skipped",
}
PRECISIONS = {
    BuildPrecision.EXACT: "float32",
    BuildPrecision.ROUNDING: "bfloat16 or float16 inside",
    BuildPrecision.QUANTISED: "quantised",
}
GOALS = {
    Goal.LATENCY: "time of a call with batch 1",
    Goal.THROUGHPUT: "samples per second",
    Goal.SIZE: "size of the artefact",
}


def headline(result: ExportResult) -> str:
    """The answer in one line."""
    winner = result.winner
    if winner is None:
        return "No build could be verified"
    if winner.id == "eager":
        return "Nothing beats eager PyTorch here"
    if result.goal is Goal.SIZE:
        return f"{winner.title}: {units.size(winner.size_bytes)}"
    return f"{winner.title}: {faster(winner)}"


def faster(item: ExportCandidate) -> str:
    """Its speed relative to eager."""
    if item.speedup is None:
        return "not timed beside eager"
    low_high = ""
    if item.speedup_interval is not None:
        low_high = f" ({units.ratios(item.speedup_interval)})"
    return f"{units.ratio(item.speedup)} eager{low_high}"


def guard(found: ExportGuard | None) -> str:
    """The result of the comparison with eager float32."""
    if found is None:
        return ""
    parts = []
    if found.relative_error is not None:
        allowed = f", {found.limit:.0e} allowed" if found.limit is not None else ""
        parts.append(f"error {found.relative_error:.1e}{allowed}")
    if found.top1 is not None:
        parts.append(f"same class in {units.share(found.top1)}")
    if found.metric and found.value is not None:
        text = f"{found.metric} {found.value:.4f}"
        if found.reference is not None:
            text += f" against {found.reference:.4f}"
        if found.lower is not None:
            text += f", at least {100 * found.lower:.1f} % of it"
        parts.append(text)
    parts.append(units.count(found.samples, "sample"))
    return "; ".join(parts)


def metric(found: Mapping[str, object]) -> str:
    """What the script's own evaluation reports: "accuracy 0.9517"."""
    value = found["value"]
    return (
        f"{found['name']} {value:.4g}" if isinstance(value, float) else f"{found['name']} {value}"
    )


def shape(sizes: tuple[int | None, ...]) -> str:
    """(None, 3, 224, 224) -> "any x 3 x 224 x 224"."""
    return " x ".join("any" if size is None else f"{size}" for size in sizes) or "a number"
