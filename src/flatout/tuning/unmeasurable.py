"""One message on what the user's program did instead of training."""

from __future__ import annotations

import shutil
from pathlib import Path

from flatout.measuring.live import FinishedTuning
from flatout.measuring.outcome import Outcome
from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.running.one.records import without_steps
from flatout.running.one.trial_process import GIVE_INPUT, log_tail, wants_input

LOG_LINES = 12
FULL_BYTES = 16 * 2**20
"""Below this free space the disk counts as full: records and gradients need some."""
CURE_FULL = "free some space, then run it again"


def why(outcome: Outcome | FinishedTuning) -> UserError:
    """The error that tells why the program as written gave no measurement, and what to do next."""
    tail = "".join(f"\n  | {line}" for line in log_tail(Path(outcome.log), LOG_LINES))
    # Checked first: without space, neither the program nor the agent can record the cause.
    folder = Path(outcome.log).parent
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < FULL_BYTES:
        full = f"the disk is full, {units.size(free_bytes)} left for {folder}"
        return UserError(f"the program as written cannot be measured: {full}{tail}", CURE_FULL, 1)
    if not outcome.agent_seen:
        return UserError(
            "no Python process under this command loaded flatout's agent"
            f" (python -I, -E and -S ignore PYTHONPATH){tail}",
            "start the script without these options, or name the Python that runs it: --python",
        )
    message = f"the program as written cannot be measured: {outcome.error}"
    if outcome.process is None:
        message = _no_step(outcome)
    return UserError(message + tail, _next_step(outcome), 1)


def _next_step(outcome: Outcome | FinishedTuning) -> str:
    log = f"its whole output: {outcome.log}"
    if outcome.late:
        return f"if it needs longer than that, give it more time with --budget; {log}"
    if _children(outcome) and outcome.process is None:
        return without_steps(outcome.torch_seen, outcome.backwards, outcome.children)[1]
    if wants_input(Path(outcome.log)):
        return f"{GIVE_INPUT}; {log}"
    return f"run it by itself first: it must train; {log}" if outcome.process is None else log


def _no_step(outcome: Outcome | FinishedTuning) -> str:
    activity, _ = without_steps(outcome.torch_seen, outcome.backwards, _children(outcome))
    if outcome.late:
        return f"the program {activity}; {outcome.error}"
    if outcome.returncode and outcome.returncode < 0:
        return f"the program {activity}; it was killed by signal {-outcome.returncode}"
    exit_code = f", exit code {outcome.returncode}" if outcome.returncode else ""
    return f"the program {activity}{exit_code}"


def _children(outcome: Outcome | FinishedTuning) -> int:
    """Processes that may train in its place: none of a program that fails, whose own error counts
    (they may be loader workers).
    """
    return 0 if outcome.returncode else outcome.children
