"""A run on several nodes: this node's ranks, the leader on node 0, and the way to it."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import flatout
from flatout.nouns.errors import UserError
from flatout.nouns.identity import Identity
from flatout.nouns.nodes import NativeProgram, NodeLayout, NodeRound, RankPlace
from flatout.nouns.plan import PlannedBoost
from flatout.running.nodes.connections import NodeLimits
from flatout.running.nodes.leader import NodeLeader
from flatout.running.nodes.link import NodeLink
from flatout.running.one.command import Command, script_sha256
from flatout.running.ranks import restarting
from flatout.running.ranks.layout import RankLayout, asked_layout
from flatout.tuning import native_trial
from flatout_agent import wire

UNTRIED = "{ranks} ranks on {nodes} nodes, without a trial, which works on one machine only; {how}"
CUT = "before the first step, flatout still proves that the batches can be divided"
NATIVE = "started as torchrun would, {who} divides the work"


def untried(layout: RankLayout, nodes: int) -> str:
    """How the ranks of several nodes begin, in one line."""
    native = layout.native
    if native is None:
        how = CUT
    else:
        name = native_trial.NAMES.get(native.framework, native.framework)
        how = NATIVE.format(who="the script" if native.framework == wire.OWN_DDP else name)
    return UNTRIED.format(ranks=layout.total, nodes=nodes, how=how)


def layout(ranks: int | None, gpus: str | None, machine: Identity, least: int) -> RankLayout:
    """The ranks of this machine; by default one on each GPU, or one.

    least: the fewest ranks allowed. Raises UserError.
    """
    present = len(machine.gpus)
    if ranks is None and gpus is None:
        ranks, gpus = (None, "all") if present else (1, None)
    cores = machine.cores or 1
    return asked_layout(ranks, gpus, cores, present, os.environ, least=least)


def program(command: Command, boosts: Sequence[PlannedBoost], scale_batch: bool) -> str:
    """The same on all nodes that would run the same program."""
    chosen = [(boost.id, boost.params) for boost in boosts]
    parts = [flatout.__version__, script_sha256(command.script), chosen, scale_batch]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


class JoinedNodes:
    """A node, from its first message to the others to its last."""

    def __init__(self, nodes: NodeLayout, limits: NodeLimits, restarts: int = 0) -> None:
        """restarts: how often all ranks may be started again.

        Raises UserError if node 0 cannot listen.
        """
        self.nodes, self.limits = nodes, limits
        self._leader: NodeLeader | None = None
        address = nodes.leader, nodes.port
        if nodes.index == 0:
            seed = random.SystemRandom().getrandbits(31)
            self._leader = NodeLeader(nodes, seed, limits, restarts, restarting.may_help)
            address = self._leader.address
        self.link = NodeLink(nodes, address, self.limits)

    def seen(self, look: Callable[[], NativeProgram | None]) -> NativeProgram | None:
        """What node 0 finds about the program while other nodes join; None on the others."""
        if self._leader is None:
            return None
        self._leader.wait_anew(self.limits.look_s)
        try:
            return look()
        except BaseException:
            self.close()
            raise
        finally:
            if self._leader is not None:
                self._leader.wait_anew()

    def join(
        self,
        layout: RankLayout,
        program: str,
        native: NativeProgram | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> RankLayout:
        """Wait for the other nodes; `layout` with its place among theirs. Raises UserError.

        native: what was found about the program; tell: called with a line on the consequence.
        """
        return self._placed(layout, lambda: self.link.join(layout.size, program, native), tell)

    def rejoin(self, layout: RankLayout) -> RankLayout:
        """The same after the ranks are started again. Raises UserError."""
        return self._placed(layout, self.link.rejoin, lambda line: None)

    def _placed(
        self, layout: RankLayout, agree: Callable[[], NodeRound], tell: Callable[[str], None]
    ) -> RankLayout:
        try:
            agreed = agree()
        except BaseException:
            self.close()
            raise
        if agreed.total < 2:
            raise UserError("one rank is the script as written", "--nodes 1")
        index, count = self.nodes.index, self.nodes.count
        first = agreed.firsts[index]
        place = RankPlace(first, agreed.total, agreed.store, agreed.host, index, count)
        native = native_trial.of_nodes(agreed.native, agreed.sizes, tell)
        return replace(layout, seed=agreed.seed, place=place, native=native)

    def close(self) -> None:
        """Leave; node 0 first tells the others how it ended."""
        self.link.close()
        if self._leader is not None:
            self._leader.close()
            self._leader = None
