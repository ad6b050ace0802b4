"""What checks of torch.compile ask of a Profile."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flatout.diagnosing.job import device_time
from flatout.diagnosing.job.device_time import Saving
from flatout.nouns import units
from flatout.nouns.profile import Profile

COMPILING = re.compile(r".*\(dynamo_timed\)|_compile\.compile_inner.*|compile_fx\b.*")
"""Names of torch.compile's own work in a trace."""
SHAPE = re.compile(
    r"size mismatch|stride mismatch|shape mismatch|\.size\(|\.size\(\)\[|shape\[|rank mismatch"
    r"|expected \d+, actual \d+",
    re.IGNORECASE,
)


def saving(profile: Profile) -> Saving:
    """The time a step that compiling takes, as far as recorded."""
    took = sum(
        operator.host_ms for operator in profile.operators if COMPILING.fullmatch(operator.name)
    )
    return device_time.of_step(
        profile, took, f"compiling takes {units.milliseconds(took)} of the recorded steps each"
    )


def of_shapes(reasons: Sequence[str]) -> list[str]:
    """The reasons that name a changed size."""
    return [reason for reason in reasons if SHAPE.search(reason)]


def evidence(reasons: Sequence[str], most: int = 3, width: int = 240) -> str:
    """The first distinct reasons, shortened."""
    distinct = list(dict.fromkeys(reasons))
    parts = [text if len(text) <= width else f"{text[: width - 3]}..." for text in distinct[:most]]
    if len(distinct) > most:
        parts.append(f"and {len(distinct) - most} more")
    return "; ".join(parts)
