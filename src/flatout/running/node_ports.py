"""Ports at which nodes and ranks meet, and the addresses by which other machines reach them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from contextlib import suppress

from flatout.nouns.errors import UserError


def listening(leader: str, port: int) -> socket.socket:
    """A socket where the nodes meet: at the leader's address if it is one of ours, else at all.

    A name may be resolved to 127.0.1.1 on its own machine, where nobody else would reach it.
    Raises UserError.
    """
    error: OSError | None = None
    for family, host in _hosts(leader):
        try:
            return _listener(family, host, port)
        except OSError as failed:
            error = failed
    taken = f"port {port} of {leader} cannot be used: {error}"
    raise UserError(taken, "choose another port: FLATOUT_LEADER=host:port, or MASTER_PORT", 1)


def _hosts(leader: str) -> list[tuple[socket.AddressFamily, str]]:
    everywhere = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, leader)
            return [(family, leader), *everywhere]
    return everywhere


def _listener(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def reserved() -> tuple[socket.socket | None, int]:
    """A free port, and what keeps it from others until rank 0 opens it.

    Bound, and not listened at: rank 0 may still bind it (SO_REUSEADDR, which torch sets too).
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    port = int(reserved.getsockname()[1])
    if sys.platform == "win32":  # there it would be shared
        reserved.close()
        return None, port
    return reserved, port


def reachable(connections: Iterable[socket.socket]) -> str:
    """The address by which the other nodes have reached this one."""
    own = [str(connection.getsockname()[0]).removeprefix("::ffff:") for connection in connections]
    outer = [host for host in own if not host.startswith("127.") and host != "::1"]
    return next(iter([*outer, *own]), "127.0.0.1")
