"""Find the lines of the calls that a function made.

Kineto's stacks name functions, with the line of their `def`. The line in the body is found in the
source: its calls and operators, in order of evaluation, are matched with the events, in order of
occurrence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.profiling.trace.sites import Arm, Site

FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
BUILT_IN = re.compile(r"^<built-in (?:function|method) (\w+)")
OPTIMIZER = re.compile(r"^Optimizer\.(\w+)#")
MODULE = "nn.Module: "
SPELLINGS = {"to": ("cuda", "cpu", "type", "float", "half", "bfloat16", "double", "long", "int")}
"""Other spellings of an operator in the source."""
NAMESPACE = re.compile(r"_?(?:linalg|fft|special)_(?=[a-z])")
"""Prefix of functions that the source calls in a module of this name:
torch.linalg.svdvals is linalg_svdvals.
"""


@dataclass(frozen=True)
class Called:
    """One event, as it may be written in the source."""

    names: frozenset[str]
    anything: bool
    """Whether it is a module or a wrapped function, which the source may name otherwise."""
    module: bool = False

    def fits(self, site: Site, is_written: bool, called_names: frozenset[str]) -> bool:
        """`is_written`: some site has its name; `called_names`: the names of all calls."""
        if is_written:
            return bool(self.names & site.names)
        if not self.anything or site.names & called_names:
            return False
        return site.module if self.module else site.call


def called(event: str) -> Called:
    """How this event may be written in the source."""
    if event.startswith(MODULE):
        return Called(frozenset(), anything=True, module=True)
    if match := BUILT_IN.match(event):
        return Called(_spellings(match.group(1)), anything=False)
    if match := FRAME.match(event):
        return Called(frozenset({match.group("function")}), anything=True)
    if match := OPTIMIZER.match(event):
        return Called(frozenset({match.group(1)}), anything=False)
    name = event.split("::")[-1]
    others = {name.rstrip("_"), *SPELLINGS.get(name, ())}
    return Called(_spellings(name) | others, anything=False)


def _spellings(name: str) -> frozenset[str]:
    """Its spellings, also without a namespace."""
    return frozenset({name, NAMESPACE.sub("", name, count=1)})


def resolve(
    sites: Sequence[Site], events: Sequence[str], inside: Sequence[frozenset[str]] = ()
) -> list[int | None]:
    """The line of each event, or None if not found. In a loop the sites start over.

    `inside`: for each event the names of its own callees, since a wrapper hides the
    name that the source uses.
    """
    source_names: frozenset[str] = frozenset().union(*(site.names for site in sites))
    calls = [called(event) for event in events]
    calls = [
        replace(call, names=call.names if call.names & source_names else call.names | inner_names)
        for call, inner_names in zip(calls, inside or [frozenset()] * len(calls), strict=True)
    ]
    is_written = [bool(call.names & source_names) for call in calls]
    called_names: frozenset[str] = frozenset().union(*(call.names for call in calls))
    fitting = [
        frozenset(
            number for number, site in enumerate(sites) if call.fits(site, written, called_names)
        )
        for call, written in zip(calls, is_written, strict=True)
    ]
    # Sides of branches with a call that can only come from there.
    arms_taken: set[Arm] = set()
    for candidates in set(fitting):
        arms = [frozenset(sites[number].arms) for number in candidates]
        arms_taken |= frozenset.intersection(*arms) if arms else frozenset()
    taken_arms = frozenset(arms_taken)
    counts = Counter(fitting)
    lines: list[int | None] = []
    position = 0
    for call, candidates, next_call in zip(calls, fitting, [*calls[1:], None], strict=True):
        reachable = _reachable(sites, candidates, taken_arms)
        # The next candidate from `position` on, wrapping around.
        number = min(reachable, key=lambda site: (site < position, site), default=None)
        if "__next__" in call.names:
            number = _loading_site(sites, next_call, number)
        elif number is not None and _is_doubtful(
            sites, number, candidates, taken_arms, counts[candidates]
        ):
            lines.append(None)
            position = number + 1
            continue
        lines.append(None if number is None else sites[number].line)
        position = position if number is None else number + 1
    return lines


def _reachable(
    sites: Sequence[Site], candidates: frozenset[int], taken_arms: frozenset[Arm]
) -> frozenset[int]:
    """The candidates that are not on the other side of a branch with a known taken side."""
    decided_branches = {branch for branch, _ in taken_arms}
    return frozenset(
        number
        for number in candidates
        if all(arm in taken_arms or arm[0] not in decided_branches for arm in sites[number].arms)
    )


def _is_doubtful(
    sites: Sequence[Site],
    chosen: int,
    candidates: frozenset[int],
    taken_arms: frozenset[Arm],
    call_count: int,
) -> bool:
    """Whether the call may also come from the other side of a branch, or from after it."""
    open_arms = frozenset(sites[chosen].arms) - taken_arms
    others = [number for number in _reachable(sites, candidates, taken_arms) if number != chosen]
    sides = dict(sites[chosen].arms)
    for number in others:
        if any(sides.get(branch, side) != side for branch, side in sites[number].arms):
            return True
    outside = any(not open_arms <= frozenset(sites[number].arms) for number in others)
    return bool(open_arms) and outside and call_count != len(others) + 1


def _loading_site(
    sites: Sequence[Site], next_call: Called | None, chosen: int | None
) -> int | None:
    """The site that asks the loader: the innermost `for` whose body makes the next call."""
    likelihood = max((site.loads for site in sites), default=0)
    if not likelihood:
        return chosen
    loaders = [number for number, site in enumerate(sites) if site.loads == likelihood]
    names = next_call.names if next_call else frozenset()
    enclosing = [
        (len(sites[number].body), number) for number in loaders if sites[number].body & names
    ]
    if enclosing:
        return min(enclosing)[1]
    return chosen if chosen in loaders else loaders[0] if len(loaders) == 1 else None
