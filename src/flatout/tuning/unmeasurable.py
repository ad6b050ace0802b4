"""Say in one message what the user's program did instead of training."""

from __future__ import annotations

from pathlib import Path

from flatout.measuring.outcome import Outcome
from flatout.nouns.errors import UserError
from flatout.running.process import log_tail

LOG_LINES = 12


def why(outcome: Outcome) -> UserError:
    """The error that tells why the program as written gave no measurement, and what to do next."""
    tail = "".join(f"\n  | {line}" for line in log_tail(Path(outcome.log), LOG_LINES))
    if not outcome.agent_seen:
        return UserError(
            "no Python process under this command loaded flatout's agent"
            f" (python -I, -E and -S ignore PYTHONPATH){tail}",
            "start the script without these options, or name the Python that runs it: --python",
        )
    if outcome.rank is None:
        return UserError(_no_step(outcome) + tail, "run it by itself first: it must train", 1)
    return UserError(
        f"the program as written cannot be measured: {outcome.error}{tail}",
        f"its whole output: {outcome.log}",
        1,
    )


def _no_step(outcome: Outcome) -> str:
    did = "imported torch but took no optimizer step" if outcome.torch_seen else (
        "never imported torch"
    )  # fmt: skip
    if outcome.error and outcome.error.startswith("stopped after"):
        return f"the program {did}; {outcome.error}"
    if outcome.returncode and outcome.returncode < 0:
        return f"the program {did}; it was killed by signal {-outcome.returncode}"
    code = f", exit code {outcome.returncode}" if outcome.returncode else ""
    return f"the program {did}{code}"
