"""The machines that run one job together: which there are, what they agree on, how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.ranks import RankFailure


@dataclass(frozen=True)
class NodeLayout:
    """How many nodes there are, which one this is, and where they meet."""

    count: int = 1
    index: int = 0
    """The index of this node, from 0; node 0 is the leader."""
    leader: str = ""
    """Address of node 0, as the other nodes reach it; empty: there is one node."""
    port: int = 0
    """The leader's port, where the nodes meet."""
    engine: str = ""
    """Who started the nodes, for people: "Slurm"."""
    job: str = ""
    """The same on all nodes of a job and on no other: a token, or else the engine's number."""
    name: str = ""
    """The name of this node, or empty for its host name."""


@dataclass(frozen=True)
class NativeProgram:
    """What node 0 has seen of a program that divides its work itself, when it trained alone."""

    framework: str
    """accelerate, fabric, lightning, transformers, or ddp."""
    against: str = ""
    """Why it should not be started as it is made to."""
    batches: tuple[int, ...] = ()
    """Sizes of the batches that its ranks would divide between them."""
    scale_batch: bool = False
    """Its ranks may have a whole batch each."""


@dataclass(frozen=True)
class NodeRound:
    """What the nodes agree on before their ranks start."""

    firsts: tuple[int, ...]
    """The first rank of each node."""
    total: int
    """Ranks on all nodes."""
    names: tuple[str, ...]
    store: str
    """host:port where rank 0 opens the store by which the ranks find each other."""
    host: str
    """Address of this node that the others reach."""
    seed: int
    native: NativeProgram | None = None
    """None: it trains as it would on one device, and its rows are cut."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of ranks on each node."""
        ends = (*self.firsts[1:], self.total)
        return tuple(end - first for first, end in zip(self.firsts, ends, strict=True))


@dataclass(frozen=True)
class RankPlace:
    """Where the ranks of this machine stand among those of all machines."""

    first: int
    """The first rank here."""
    total: int
    """Ranks on all machines."""
    store: str
    """host:port where rank 0 opens the store by which all find each other."""
    host: str
    """The address by which the others reach this machine."""
    machine: int = 0
    """The number of this machine, from 0."""
    machines: int = 1

    @property
    def meeting(self) -> tuple[str, str]:
        """`store` as its address, without brackets, and its port."""
        host, _, port = self.store.rpartition(":")
        return host.strip("[]"), port


@dataclass(frozen=True)
class StandStill:
    """Ranks of one node that have taken no step for long."""

    waits: bool
    """One of them at least waits for others."""
    behind: int | None
    """Last step of the slowest rank that does not wait, or None if all wait."""


@dataclass(frozen=True)
class NodesStill:
    """The same of all nodes, as one of them sees it."""

    waits: bool = False
    """A rank of another node waits."""
    least: int | None = None
    """`behind` of the node furthest behind, or None if no rank stands still without waiting."""
    most: int | None = None
    """`behind` of the node that is least behind."""


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
