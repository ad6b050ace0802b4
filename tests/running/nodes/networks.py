"""Two machines as network namespaces: each has an address of its own and its own loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator


class Network:
    """Two namespaces and the cable between them."""

    def __init__(self, tag: str) -> None:
        self.names = (f"fo{tag}a", f"fo{tag}b")
        self.addresses = ("10.231.77.1", "10.231.77.2")
        self.devices = (f"v{tag}a", f"v{tag}b")

    def inside(self, node: int) -> list[str]:
        """What to put before a command to run it on this node."""
        return ["ip", "netns", "exec", self.names[node]]

    def cut(self) -> None:
        """Nobody hears of it: packets are lost, as when a machine has no power."""
        ip("-n", self.names[1], "link", "set", self.devices[1], "down")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@contextlib.contextmanager
def network() -> Iterator[Network | None]:
    """None: this system does not let us make one."""
    made = Network(f"{os.getpid() % 100000}")
    try:
        yield made if _connected(made) else None
    finally:
        for name in made.names:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                ip("netns", "delete", name)


def _connected(made: Network) -> bool:
    """Whether this system lets us make it: root, with iproute2."""
    if not shutil.which("ip") or os.geteuid():
        return False
    first, second = made.devices
    try:
        for name in made.names:
            ip("netns", "add", name)
        ip("link", "add", first, "type", "veth", "peer", "name", second)
        for name, device, address in zip(made.names, made.devices, made.addresses, strict=True):
            ip("link", "set", device, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.SubprocessError):
        return False
    return True
