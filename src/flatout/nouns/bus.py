"""Bus bandwidth: the load of an exchange on the links, comparable for any number of ranks.

Counted as in nccl-tests, as bytes on the links per byte of the message. Figures for two ranks and
for eight can then be compared with each other and with the link.
"""

from __future__ import annotations


def share(collective: str, ranks: int) -> float | None:
    """Bytes on each rank's links per byte of its message, or None if unknown or for one rank.

    collective: a name of `nouns.profile.Collective`; the message is what a rank puts in.
    """
    if ranks < 2:
        return None
    others = ranks - 1
    shares = {
        "all_reduce": 2 * others / ranks,
        "all_gather": float(others),
        "reduce_scatter": others / ranks,
        "all_to_all": others / ranks,
        "broadcast": 1.0,
    }
    return shares.get(collective)


def gb_per_s(collective: str, ranks: int, message_bytes: float, seconds: float) -> float | None:
    """Bus bandwidth (GB/s) of one message, or None if `share` is None or it took no time."""
    part = share(collective, ranks)
    return None if part is None or seconds <= 0 else part * message_bytes / seconds / 1e9
