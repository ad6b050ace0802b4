"""The time of a step over several ranks, from figures of one: the model of a scaling trial.

    T_W = T_outside + T_region(N / W) + exposed(C_W)

T_outside is computed on every rank alike (loading what is not sharded, optimizer, the script's own
work), T_region on a rank's N / W rows. C_W is the exchange of gradients, as it would take alone:
2 (W - 1) / W x bytes / bus bandwidth, and the latency of each message. What fits beside the
backward pass costs nothing, except the last message, which can only be sent when it is over.

Seconds, bytes, and GB/s of bus bandwidth (`nouns.bus`), for one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout.nouns import bus

BUCKET = 25 * 2**20
"""Bytes of a message, as DistributedDataParallel sends them."""


@dataclass(frozen=True)
class Link:
    """What connects the ranks of one node, or the nodes."""

    bus_gb_per_s: float
    """Bus bandwidth of an all-reduce of large messages; between nodes: of all ports of a node."""
    hop_s: float = 0.0
    """Latency of one message from a rank to the next."""


@dataclass(frozen=True)
class Cluster:
    """Ranks on equal nodes."""

    ranks_per_node: int
    inside: Link
    between: Link | None = None
    """None: there is one node."""


@dataclass(frozen=True)
class Rehearsal:
    """One rank of W, measured alone on its own rows, without an exchange."""

    outside_s: float
    region_s: float
    """Forward and backward of its rows."""
    backward_s: float
    """Of these; gradients are sent beside it."""
    gradient_bytes: float
    bucket_bytes: float = BUCKET


@dataclass(frozen=True)
class Prediction:
    """One step over `ranks` ranks."""

    ranks: int
    step_s: float
    exchange_s: float
    """C_W: all messages, one after the other, with nothing beside them."""
    exposed_s: float
    """Of these, while nothing computes."""
    latency_s: float
    """Of the exchange, what does not depend on the bytes."""

    @property
    def exposed_share(self) -> float:
        """Of the step."""
        return self.exposed_s / self.step_s if self.step_s > 0 else 0.0


def predicted(rehearsal: Rehearsal, ranks: int, cluster: Cluster) -> Prediction:
    """The step over so many ranks. Raises ValueError where they do not fit on one node, and what
    connects nodes is not known.
    """
    messages = max(1, math.ceil(rehearsal.gradient_bytes / rehearsal.bucket_bytes))
    latency_s = messages * message_latency_s(ranks, cluster)
    exchange_s = sending_s(rehearsal.gradient_bytes, ranks, cluster) + latency_s
    exposed_s = max(exchange_s / messages, exchange_s - rehearsal.backward_s)
    exposed_s = exposed_s if ranks > 1 else 0.0
    step_s = rehearsal.outside_s + rehearsal.region_s + exposed_s
    return Prediction(ranks, step_s, exchange_s, exposed_s, latency_s)


def sending_s(message_bytes: float, ranks: int, cluster: Cluster) -> float:
    """Seconds of one large all-reduce, without latency. Stages inside nodes and between them run
    one behind the other in a pipeline, so the slower one sets the pace.
    """
    nodes, inside = _spread(ranks, cluster)
    share = bus.share("all_reduce", ranks) or 0.0
    slowest = cluster.inside.bus_gb_per_s if inside > 1 else math.inf
    if nodes > 1:
        slowest = min(slowest, _between(cluster).bus_gb_per_s)
    return share * message_bytes / (slowest * 1e9)


def message_latency_s(ranks: int, cluster: Cluster) -> float:
    """Of one message: a ring inside a node, a tree between nodes, there and back."""
    nodes, inside = _spread(ranks, cluster)
    latency_s = 2 * (inside - 1) * cluster.inside.hop_s
    if nodes > 1:
        latency_s += 2 * math.ceil(math.log2(nodes)) * _between(cluster).hop_s
    return latency_s


def of_measured(ranks: int, bus_gb_per_s: float, latency_s: float) -> Link:
    """The link of one node, from an all-reduce that was measured over so many ranks: the bus
    bandwidth of a large message, the time of a small one.
    """
    return Link(bus_gb_per_s, latency_s / (2 * (ranks - 1)))


def efficiency(one_rank_step_s: float, prediction: Prediction, rows_factor: float = 1.0) -> float:
    """Speed-up over one rank, divided by the ranks.

    rows_factor: rows of this step by rows of the one rank's step; 1: the batch stays the same.
    """
    speed_up = rows_factor * one_rank_step_s / prediction.step_s
    return speed_up / prediction.ranks


def _spread(ranks: int, cluster: Cluster) -> tuple[int, int]:
    """Nodes, and ranks on each."""
    inside = min(ranks, cluster.ranks_per_node)
    return math.ceil(ranks / inside), inside


def _between(cluster: Cluster) -> Link:
    if cluster.between is None:
        raise ValueError(f"more than {cluster.ranks_per_node} ranks: what connects the nodes?")
    return cluster.between
