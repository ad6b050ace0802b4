"""Several processes for one script: what is requested, and how they begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from flatout.commands import duration, harmless, warn
from flatout.nouns.errors import UserError
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.reporting import terminal
from flatout.running.one.command import Command

if TYPE_CHECKING:
    from pathlib import Path

    from flatout.nouns.identity import Identity
    from flatout.nouns.nodes import NodeLayout
    from flatout.nouns.ranks import Scaling
    from flatout.running.ranks.layout import RankLayout
    from flatout.running.ranks.restarting import Restarts
    from flatout.running.ranks.started import StartedRanks


class AskedRanks(NamedTuple):
    """The options of `flatout run` about several processes."""

    ranks: int | None
    gpus: str | None
    nodes: str | None
    wait_s: float
    restarts: int
    scale_batch: bool
    trial: bool
    remember: bool


def asked_ranks(
    live: bool,
    ranks: int | None,
    gpus: str | None,
    nodes: str | None,
    wait: str,
    restarts: int,
    scale_batch: bool,
    no_trial: bool,
    no_plan: bool,
) -> AskedRanks | None:
    """The request, or None for one process. Raises UserError for options that do not combine."""
    several = (ranks, gpus, nodes) != (None, None, None) or scale_batch
    if not several:
        if restarts:
            raise UserError("--restarts starts ranks again", "give --ranks, --gpus or --nodes too")
        return None
    from flatout.tuning import rank_run

    rank_run.check(ranks, gpus, live, nodes, scale_batch)
    wait_s = duration("--nodes-wait", wait)
    return AskedRanks(ranks, gpus, nodes, wait_s, restarts, scale_batch, not no_trial, not no_plan)


class RankJob(NamedTuple):
    """What the ranks run."""

    target: Command
    applied: Plan
    boosts: tuple[PlannedBoost, ...]
    plan_path: Path
    quiet: bool


class BegunRanks(NamedTuple):
    """Ranks that can be started."""

    group: StartedRanks
    scaling: Scaling | None = None
    restarts: Restarts | None = None
    heard: bool = True
    """Whether this node reports how it went."""

    def again(self) -> BegunRanks | None:
        """The same for one more start, or None if it is over. Raises UserError."""
        group = self.restarts.after(self.group) if self.restarts is not None else None
        return self._replace(group=group) if group is not None else None


@contextmanager
def begun(job: RankJob, asked: AskedRanks) -> Iterator[BegunRanks | None]:
    """The ranks if a trial shows that they pay and are right; None if one process is enough."""
    from flatout.probing import nodes
    from flatout.probing.identity import identity
    from flatout.running.ranks.layout import check_command
    from flatout.tuning import node_run

    machine = identity()
    check_command(job.target)
    there = nodes.layout(asked.nodes) if asked.nodes is not None else None
    if there is not None and there.count > 1:
        with _on_nodes(job, asked, there, machine) as ranks:
            yield ranks
        return
    layout = node_run.layout(asked.ranks, asked.gpus, machine, 2 if there is None else 1)
    if layout.size > 1:
        yield _on_this_machine(job, asked, layout, machine)
    elif not asked.restarts:  # an engine with one node and one GPU
        yield None
    else:
        from flatout.reporting import ranks as report
        from flatout.running.ranks.restarting import LoneRank, Restarts

        def group() -> StartedRanks:
            return LoneRank(job.target, layout)

        yield BegunRanks(group(), None, Restarts(asked.restarts, group, report.started_again))


def _on_this_machine(
    job: RankJob, asked: AskedRanks, layout: RankLayout, machine: Identity
) -> BegunRanks:
    """Begin after a trial, unless none is wanted or the plan remembers one."""
    from flatout.reporting import ranks as report
    from flatout.running.ranks.restarting import Restarts
    from flatout.running.ranks.started import StartedRanks
    from flatout.tuning import rank_run, scaling_trial

    if not asked.trial:
        begin = rank_run.untried(layout, job.target, asked.scale_batch)
    else:
        tell = (lambda line: None) if job.quiet else terminal.say
        settings = job.target, job.applied, job.boosts, layout, machine, tell, warn
        begin = rank_run.planned(*settings, asked.scale_batch)
    if begin.scaling is not None:
        if not job.quiet:
            report.trial(begin.scaling)
        if begin.scaling.count is None:
            raise scaling_trial.refused(begin.scaling)
        if asked.remember:
            with harmless("the trial is not in the plan"):
                trial = begin.scaling, layout, machine, asked.scale_batch
                rank_run.write_plan(job.plan_path, job.target, *trial)

    def group() -> StartedRanks:
        return StartedRanks(job.target, begin.layout, report.failed)

    return BegunRanks(group(), begin.scaling, Restarts(asked.restarts, group, report.started_again))


@contextmanager
def _on_nodes(
    job: RankJob, asked: AskedRanks, nodes: NodeLayout, machine: Identity
) -> Iterator[BegunRanks]:
    """Begin on this node and others, each of which runs this same command."""
    from flatout.reporting import ranks as report
    from flatout.running.nodes.connections import NodeLimits
    from flatout.running.nodes.group import NodeGroup
    from flatout.running.ranks.restarting import Restarts
    from flatout.tuning import native_look, node_run

    own = node_run.layout(asked.ranks, asked.gpus, machine, 1)
    joined = node_run.JoinedNodes(nodes, NodeLimits(wait_s=asked.wait_s), asked.restarts)

    def tell(line: str) -> None:
        if not nodes.index and not job.quiet:
            terminal.say(line)

    settings = own.seed, asked.scale_batch, asked.trial, joined.limits.look_s
    native = joined.seen(
        lambda: native_look.program(job.target, job.applied, *settings, tell, warn)
    )
    program = node_run.program(job.target, job.boosts, asked.scale_batch)
    layout = joined.join(own, program, native, tell)
    if asked.trial:
        tell(node_run.untried(layout, nodes.count))

    def group(placed: RankLayout) -> NodeGroup:
        return NodeGroup(job.target, placed, report.failed, joined.link, joined.close)

    again = (lambda number: None) if nodes.index else report.started_again
    restarts = Restarts(asked.restarts, lambda: group(joined.rejoin(own)), again)
    try:
        yield BegunRanks(group(layout), None, restarts, heard=nodes.index == 0)
    finally:
        joined.close()
