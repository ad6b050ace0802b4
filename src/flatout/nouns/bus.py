"""Bus bandwidth: what an exchange between ranks asks of the links, whatever their number.

As nccl-tests counts: bytes on the links for each byte of the message, so that the figure of two
ranks and that of eight can be compared with each other and with the link.
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
    """Bus bandwidth (GB/s) of one message; None where `share` is, or it took no time."""
    part = share(collective, ranks)
    return None if part is None or seconds <= 0 else part * message_bytes / seconds / 1e9
