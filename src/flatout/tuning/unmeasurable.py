"""Say in one message what the user's program did instead of training."""

from __future__ import annotations

import shutil
from pathlib import Path

from flatout.measuring.live import Tried
from flatout.measuring.outcome import Outcome
from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.running.process import log_tail

LOG_LINES = 12
FULL_BYTES = 16 * 2**20
"""With less space than this the disk counts as full: records and gradients need some."""
CURE_FULL = "free some space, then run it again"


def why(outcome: Outcome | Tried) -> UserError:
    """The error that tells why the program as written gave no measurement, and what to do next."""
    tail = "".join(f"\n  | {line}" for line in log_tail(Path(outcome.log), LOG_LINES))
    full = _full_disk(Path(outcome.log).parent)
    if full is not None:
        return UserError(f"the program as written cannot be measured: {full}{tail}", CURE_FULL, 1)
    if not outcome.agent_seen:
        return UserError(
            "no Python process under this command loaded flatout's agent"
            f" (python -I, -E and -S ignore PYTHONPATH){tail}",
            "start the script without these options, or name the Python that runs it: --python",
        )
    told = _no_step(outcome) if outcome.process is None else (
        f"the program as written cannot be measured: {outcome.error}"
    )  # fmt: skip
    return UserError(told + tail, _next_step(outcome), 1)


def _full_disk(folder: Path) -> str | None:
    """Told first: without space neither the program nor the agent can write what went wrong."""
    free = shutil.disk_usage(folder).free
    if free >= FULL_BYTES:
        return None
    return f"the disk is full, {units.size(free)} left for {folder}"


def _next_step(outcome: Outcome | Tried) -> str:
    whole = f"its whole output: {outcome.log}"
    if outcome.late:
        return f"where it needs longer than that, give it more time with --budget; {whole}"
    return f"run it by itself first: it must train; {whole}" if outcome.process is None else whole


def _no_step(outcome: Outcome | Tried) -> str:
    did = "imported torch but took no optimizer step" if outcome.torch_seen else (
        "never imported torch"
    )  # fmt: skip
    if outcome.late:
        return f"the program {did}; {outcome.error}"
    if outcome.returncode and outcome.returncode < 0:
        return f"the program {did}; it was killed by signal {-outcome.returncode}"
    code = f", exit code {outcome.returncode}" if outcome.returncode else ""
    return f"the program {did}{code}"
