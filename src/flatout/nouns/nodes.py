"""The machines that run one job together: their layout, what they agree on, how it ends."""

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
    """Address of node 0 for the other nodes; empty if there is only one node."""
    port: int = 0
    """The leader's port, where the nodes meet."""
    engine: str = ""
    """Who started the nodes, for display: "Slurm"."""
    job: str = ""
    """Identifies the job on all its nodes: a token, or else the engine's number."""
    name: str = ""
    """The name of this node, or empty for its host name."""


@dataclass(frozen=True)
class NativeProgram:
    """What node 0 saw, training alone, of a program that divides its work itself."""

    framework: str
    """accelerate, fabric, lightning, transformers, or ddp."""
    against: str = ""
    """Why it should not be started the way it is meant to be; empty if it may be."""
    batches: tuple[int, ...] = ()
    """Sizes of the batches that its ranks would divide among them."""
    scale_batch: bool = False
    """Whether each of its ranks may have a whole batch."""


@dataclass(frozen=True)
class NodeRound:
    """What the nodes agree on before their ranks start."""

    firsts: tuple[int, ...]
    """The first rank of each node."""
    total: int
    """Ranks on all nodes."""
    names: tuple[str, ...]
    store: str
    """host:port of the store that rank 0 opens, through which the ranks find each other."""
    host: str
    """Address of this node for the others."""
    seed: int
    native: NativeProgram | None = None
    """The program, or None if it trains as on one device and its rows are divided."""

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
    """Ranks of one node that have taken no step for a long time."""

    waits: bool
    """Whether at least one of them waits for others."""
    behind: int | None
    """Last step of the slowest rank that does not wait, or None if all wait."""


@dataclass(frozen=True)
class NodesStill:
    """The same for all nodes, as one of them sees it."""

    waits: bool = False
    """Whether a rank of another node waits."""
    least: int | None = None
    """`behind` of the node furthest behind, or None if no rank stands still without waiting."""
    most: int | None = None
    """`behind` of the node that is least behind."""


@dataclass(frozen=True)
class NodeVerdict:
    """How it ended. Empty if every rank ended normally, or by a signal sent to the job."""

    failure: RankFailure | None = None
    crash: str = ""
    """The traceback of the failed rank, or its end."""
    refused: tuple[str, str] | None = None
    """Why the ranks cannot train this script together, and what to do next; else None."""
    again: bool = False
    """Whether all ranks are started once more."""
