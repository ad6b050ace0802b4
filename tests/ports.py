"""Ports for servers of tests, which the system gives to no connection before the server starts."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port below those that Linux, macOS and Windows give to connections by themselves."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
