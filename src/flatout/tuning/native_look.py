"""Whether a program divides its work itself, found out on node 0 before several nodes start it.

On one machine, the trial of ranks shows it. Several nodes have no trial and must all start the
program alike, so node 0 finds out and tells the others. It runs one process for a few training
steps as written, which changes nothing of the user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flatout.measuring import trial
from flatout.measuring.trial import Bench
from flatout.nouns.errors import UserError
from flatout.nouns.nodes import NativeProgram
from flatout.nouns.plan import Plan
from flatout.running.one import folder
from flatout.running.one.command import Command, script_sha256
from flatout.running.one.trial_process import end_all
from flatout.running.ranks.layout import RankLayout, alone
from flatout.running.ranks.native import starts_group
from flatout.tuning import native_trial, rank_run
from flatout_agent import wire

LOOK = "trial: one process, as written, to see whether the script divides its work itself"
UNSEEN = (
    "flatout cannot tell whether the script divides its work itself, so it divides the batches:"
    " {why}"
)


def program(
    command: Command,
    plan: Plan,
    seed: int,
    scale_batch: bool,
    may_look: bool,
    limit_s: float,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> NativeProgram | None:
    """The program's own way to divide work, or None if made for one device. Raises UserError.

    may_look: whether one process may be tried; limit_s: its time limit; tell: called with a line
    on what is done; warn: called with what the user should know.
    """
    tells = not may_look and starts_group(command.script)
    # A trial of the same script may have shown that it starts its group itself. No plan holds the
    # batches that a framework's ranks would divide.
    ranks, sha = plan.ranks, script_sha256(command.script)
    same = ranks is not None and sha is not None and ranks.script_sha256 == sha
    if tells or (ranks is not None and same and ranks.native == wire.OWN_DDP):
        return NativeProgram(wire.OWN_DDP, scale_batch=scale_batch)
    if not may_look:
        if scale_batch:
            raise UserError(rank_run.NEEDS_TRIAL, "leave out --no-trial")
        return None
    seen = _seen(command, seed, limit_s, tell, warn)
    if seen is None:
        if scale_batch:
            tell(native_trial.UNSCALED)
        return None
    return NativeProgram(seen.framework, seen.against, seen.batches, scale_batch)


def _seen(
    command: Command,
    seed: int,
    limit_s: float,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> wire.NativeSeen | None:
    """What one process shows in its first steps."""
    tell(LOOK)
    run_folder = folder.fresh("ranks")
    orders = RankLayout(1, seed).orders(0, Path(), "", str(Path.cwd()))
    bench = Bench(
        command,
        run_folder,
        seed,
        min_steps=1,
        max_steps=1,
        window_s=0.0,
        compile_cache=run_folder / "compiled",
        ranks=orders,
        variables=alone(os.environ),
    )
    try:
        first = trial.run(bench, trial.FIRST, (), None, limit_s, warmup_max_s=0.0)
    except KeyboardInterrupt:
        end_all(run_folder)
        raise
    if first.native is None and (first.process is None or first.late):
        warn(UNSEEN.format(why=f"{first.error} (log: {first.log})"))
    return first.native
