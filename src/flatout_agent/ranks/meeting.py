"""The meeting point of the ranks: a file on one machine, rank 0's address on several."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as typed

from flatout_agent import wire

dist: Any = typed
LOOPBACK = "127.0.0.1"
"""All ranks are on this machine; the loopback device also exists without a network."""
INTERFACES = "GLOO_SOCKET_IFNAME"


def store(orders: wire.RankOrders) -> Any:
    """The store through which ranks find each other."""
    if not orders.address:
        return dist.FileStore(orders.store, orders.size) if orders.store else dist.HashStore()
    host, _, port = orders.address.rpartition(":")
    return dist.TCPStore(
        host.strip("[]"),
        int(port),
        orders.size,
        is_master=orders.rank == 0,
        timeout=timedelta(seconds=orders.timeout_s),
        wait_for_workers=False,
    )


def devices(orders: wire.RankOrders) -> list[Any]:
    """The interfaces or the address on which gloo listens: the user's, or the address that the
    others reach.
    """
    create = dist.ProcessGroupGloo.create_device
    if not orders.address:
        return [create(hostname=LOOPBACK)]
    names = [name.strip() for name in os.environ.get(INTERFACES, "").split(",")]
    if any(names):
        return [create(interface=name) for name in names if name]
    return [create(hostname=orders.host)]
