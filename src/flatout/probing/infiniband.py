"""InfiniBand and RoCE ports, as the Linux kernel lists them."""

from __future__ import annotations

import re
from pathlib import Path

from flatout.nouns.machine import NetworkPort
from flatout.probing import reading

CLASSES = Path("/sys/class")


def network_ports() -> tuple[NetworkPort, ...] | None:
    """Every port, or None if the system lists none (not Linux, or /sys is not mounted)."""
    if not reading.entries(CLASSES):
        return None
    cards = reading.entries(CLASSES / "infiniband")
    if cards is None:
        present = reading.exists(CLASSES / "infiniband")
        return () if present is False else None
    ports = []
    for card in cards:
        for port in reading.entries(card / "ports") or ():
            if port.name.isdecimal():
                layer = reading.text(port / "link_layer")
                known = layer.lower() if layer and layer in ("InfiniBand", "Ethernet") else None
                ports.append(
                    NetworkPort(
                        name=f"{card.name}/{port.name}",
                        state=state(reading.text(port / "state")),
                        rate_gbit_per_s=rate(reading.text(port / "rate")),
                        link_layer=known,
                    )
                )
    return tuple(ports)


def state(text: str | None) -> str | None:
    """The state in such text: active for "4: ACTIVE"."""
    match = re.fullmatch(r"[0-9]+: ([A-Z_]+)", text or "")
    return match[1].lower() if match else None


def rate(text: str | None) -> float | None:
    """Gb/s: 400.0 for "400 Gb/sec (4X NDR)"; a port that does not know its rate reports 0."""
    match = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec\b", text or "")
    return float(match[1]) or None if match else None
