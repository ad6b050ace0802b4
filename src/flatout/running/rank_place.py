"""Where the ranks of this machine stand among those of several."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class RankPlace:
    """What the machines have agreed on."""

    first: int
    """Rank of the first one here."""
    total: int
    """Ranks on all machines."""
    store: str
    """host:port where rank 0 opens the store by which all find each other."""
    host: str
    """Address of this machine that the others reach."""
    machine: int = 0
    """Of this one, from 0."""
    machines: int = 1

    @property
    def meeting(self) -> tuple[str, str]:
        """`store` as its address, without brackets, and its port."""
        host, _, port = self.store.rpartition(":")
        return host.strip("[]"), port


def interface(address: str) -> str | None:
    """Name of the network interface that has this address; None: none has, or it is not known."""
    try:
        cards = psutil.net_if_addrs()
    except (OSError, psutil.Error):
        return None
    bare = address.partition("%")[0]
    for name, entries in cards.items():
        if any(entry.address.partition("%")[0] == bare for entry in entries):
            return name
    return None
