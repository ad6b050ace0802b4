"""The stacks of all ranks of a job that hangs, the rank that is furthest behind first."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.running.ranks import stacks
from flatout.running.ranks.stacks import WAIT_S
from flatout.running.ranks.stacks import write as write
from flatout.watching.following import FollowedRank


def collect(ranks: Sequence[FollowedRank], wait_s: float = WAIT_S) -> str:
    """Ask each rank, wait for the answers, and join them; empty if nobody was asked."""
    return stacks.together(stacks.ask(((rank.ring, rank.sample().step) for rank in ranks), wait_s))
