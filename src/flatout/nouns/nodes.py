"""The machines that run one job together: which there are, what they agree on, how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.ranks import RankFailure


@dataclass(frozen=True)
class NodeLayout:
    """How many nodes there are, which one this is, and where they meet."""

    count: int = 1
    index: int = 0
    """Of this node, from 0; node 0 is the leader."""
    leader: str = ""
    """Address of node 0, as the other nodes reach it; empty: there is one node."""
    port: int = 0
    """Of the leader, where the nodes meet."""
    engine: str = ""
    """Who started the nodes, for people: "Slurm"."""
    job: str = ""
    """The same on all nodes of a job and on no other: a token, or else the engine's number."""
    name: str = ""
    """Of this node; empty: its host name."""


@dataclass(frozen=True)
class NodeRound:
    """What the nodes agree on before their ranks start."""

    firsts: tuple[int, ...]
    """Of each node, the rank of its first one."""
    total: int
    """Ranks on all nodes."""
    names: tuple[str, ...]
    store: str
    """host:port where rank 0 opens the store by which the ranks find each other."""
    host: str
    """Address of this node that the others reach."""
    seed: int


@dataclass(frozen=True)
class NodeVerdict:
    """All fields empty: every rank ended in order, or by a signal that was sent to the job."""

    failure: RankFailure | None = None
    crash: str = ""
    """The traceback of the rank that failed, or the end of it."""
    refused: tuple[str, str] | None = None
    """The ranks cannot train this script together: the reason, and what to do next."""
    again: bool = False
    """All ranks are started once more."""
