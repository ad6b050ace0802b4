"""How NVIDIA's GPUs are connected: NVLinks and the shortest path of each pair."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flatout.nouns.gpu import Gpu, GpuPair, Link
from flatout.probing.nvml.questions import Questions

MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS; a GPU with fewer refuses higher numbers."""
REMOTE_GPU = 0
REMOTE_NPU = 1
REMOTE_SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_*."""
SWITCH = "switch"
UNKNOWN: Final = "unknown"
WAYS: dict[int, Link] = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "hostbridge",
    40: "node",
    50: "system",
}
"""NVML_TOPOLOGY_*."""


@dataclass(frozen=True)
class Links:
    """The NVLink connections of one GPU by number, or None if it reports none."""

    up: tuple[int, ...] | None
    down: tuple[int, ...] | None
    absent: bool = False
    """Whether the GPU says that it has no NVLink."""


def links(ask: Questions, handle: Any) -> Links:
    """The connections of one GPU."""
    states = [ask.number("nvmlDeviceGetNvLinkState", handle, link) for link in range(MAX_LINKS)]
    if all(state is None for state in states):
        absent = ask.has_no_such_part("nvmlDeviceGetNvLinkState", handle, 0)
        return Links(None, None, absent)
    return Links(
        tuple(link for link, state in enumerate(states) if state),
        tuple(link for link, state in enumerate(states) if state == 0),
    )


def pairs(
    ask: Questions,
    handles: Mapping[int, Any],
    gpus: Sequence[Gpu],
    connections: Mapping[int, Links],
) -> tuple[GpuPair, ...] | None:
    """The shortest path of each pair, without unknown ones, or None if all are unknown."""
    possible = list(itertools.combinations(handles, 2))
    if not possible:
        return ()
    places = {gpu.pci_address: gpu.index for gpu in gpus}
    ends: dict[int, set[int | str | None]] = {}  # other GPUs' numbers, a switch, or unknown
    for index, handle in handles.items():
        numbers = connections[index].up
        if numbers is None:
            ends[index] = set() if connections[index].absent else {UNKNOWN}
        else:
            ends[index] = {_end(ask, handle, number, places) for number in numbers}
    pairs_found = []
    for first, second in possible:
        first_ends, second_ends = ends[first], ends[second]
        by_switch = SWITCH in first_ends and SWITCH in second_ends
        link: Link | None = None
        if second in first_ends or first in second_ends or by_switch:
            link = "nvlink"
        elif UNKNOWN not in first_ends | second_ends:  # else an NVLink may connect the two
            way = ask.number("nvmlDeviceGetTopologyCommonAncestor", handles[first], handles[second])
            link = WAYS.get(way) if way is not None else None
        if link is not None:
            pairs_found.append(GpuPair(first, second, link))
    return tuple(pairs_found) or None


def _end(
    ask: Questions, handle: Any, link: int, places: Mapping[str | None, int | None]
) -> int | str | None:
    kind = ask.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    if kind in (REMOTE_SWITCH, REMOTE_NPU):
        return SWITCH if kind == REMOTE_SWITCH else None
    address = ask.pci("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)[0]
    if address is not None and address in places:
        return places[address]
    elsewhere = kind == REMOTE_GPU and address is not None and None not in places
    return None if elsewhere else UNKNOWN  # a GPU outside this list; else a switch or anything
