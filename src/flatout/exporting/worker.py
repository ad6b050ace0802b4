"""A process of the user's Python that prepares, builds or serves, with limits of time and memory.

Every outcome is an answer: it fails, crashes, hangs or takes too much memory, and the row of the
table tells which.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from flatout.nouns import units
from flatout.probing import conversation
from flatout.probing.conversation import Conversation
from flatout_agent import limits

POLL_S = 0.2
SPARED = 0.9
"""Share of the initially free memory that one process may take."""

LONGEST_REASON = 160
KNOWN_ERRORS: tuple[tuple[str, str], ...] = (
    (
        r"InvalidCxxCompiler|No working C\+\+ compiler|g\+\+.*not found|CppCompileError: .*not "
        r"not found",
        "there is no C++ compiler: install g++ (apt install g++) or clang",
    ),
    (
        r"fatal error: Python\.h",
        "Python's headers are missing: install python3-dev for this interpreter",
    ),
    (
        r"(?:Unsupported function types|Unsupported function type|unsupported operator|"
        r"No decompositions registered for|Missing ONNX|UnsupportedFakeTensor|No conversion rule "
        r"found for operations?)\W*(?P<what>[\w.:,' -]+)",
        "it does not know an operator of the model: {what}",
    ),
    (r"MemoryError|std::bad_alloc|DefaultCPUAllocator: can't allocate", "it ran out of memory"),
    (r"No space left on device", "the disk is full"),
    (
        r"GuardOnDataDependentSymNode|data-dependent",
        "the model's shapes depend on the values of its inputs",
    ),
)
"""(pattern over the whole error, words); {what} is the pattern's group `what`."""


class Broken(Exception):  # noqa: N818 - an outcome with its reason
    """The process did not carry out its order; the message is the reason, in plain words."""


class Worker:
    """A running process and its limits."""

    def __init__(self, talk: Conversation, memory_bytes: int) -> None:
        self._talk = talk
        self._memory_bytes = memory_bytes

    def ask(self, order: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Its answer to one order. Raises Broken."""
        self._talk.say(dict(order))
        return self.wait(limit_s)

    def wait(self, limit_s: float) -> dict[str, Any]:
        """Its next answer. Raises Broken."""
        deadline = time.monotonic() + limit_s
        while True:
            answer = self._talk.answer(min(deadline, time.monotonic() + POLL_S))
            if answer:
                if "error" in answer:
                    raise Broken(plain_reason(answer))
                return answer
            if answer is None and not self._talk.running:
                raise Broken(f"its process crashed: {self._talk.how_it_ended()}")
            if time.monotonic() >= deadline:
                raise Broken(f"it took longer than {limit_s:.0f} s")
            if (used := _used(self._talk.pid)) > self._memory_bytes:
                raise Broken(
                    f"it took {units.size(used)} of memory, {units.size(self._memory_bytes)} is the"
                    " limit"
                )


@contextmanager
def start(python: str, order: Mapping[str, Any], memory_bytes: int) -> Iterator[Worker]:
    """A process that carries out `order`; leaving the `with` statement ends its whole tree.

    Raises Broken if it cannot be started.
    """
    command = [python, str(conversation.program("export")), json.dumps(dict(order))]
    try:
        with Conversation(command, environment(order), takes_orders=True) as talk:
            yield Worker(talk, memory_bytes)
    except OSError as error:
        raise Broken(f"{python} cannot be started: {error}") from error


def once(
    python: str, order: Mapping[str, Any], limit_s: float, memory_bytes: int
) -> dict[str, Any]:
    """The answer of a process that carries out one order. Raises Broken."""
    with start(python, order, memory_bytes) as worker:
        return worker.wait(limit_s)


def environment(order: Mapping[str, Any]) -> dict[str, str]:
    """The user's environment, with equal threads for every library and separate compiler caches."""
    variables = conversation.environment(os.environ)
    threads = str(order["threads"])
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
    variables.update(dict.fromkeys(names, threads))
    if "compiled" in order:
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(Path(order["compiled"], "inductor"))
    # Nothing here uses the network, for telemetry or for weights.
    variables.update(HF_HUB_OFFLINE="1", OPENVINO_TELEMETRY="0", DO_NOT_TRACK="1")
    return variables


def memory_limit(asked: int | None) -> int:
    """Bytes that a process may take: `asked`, within what is free now."""
    free = int(SPARED * (limits.spare_memory() or psutil.virtual_memory().available))
    return min(asked, free) if asked else free


def _used(pid: int) -> int:
    """Resident memory of a process and its children."""
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    used = 0
    for member in tree:
        with suppress(psutil.Error):
            used += int(member.memory_info().rss)
    return used


def plain_reason(answer: Mapping[str, Any]) -> str:
    """The reported reason for a worker's failure."""
    kind, first, last = (str(answer.get(key, "")) for key in ("error", "message", "last"))
    whole = f"{kind}: {first}\n{last}"
    for pattern, words in KNOWN_ERRORS:
        match = re.search(pattern, whole)
        if match is not None:
            what = match.groupdict().get("what") or ""
            return _short(words.format(what=what.strip(" '\"")))
    line = first or last
    if kind in ("RuntimeError", "Unfit", "ValueError") and line:
        return _short(line)
    return _short(f"{kind}: {line}" if line else kind)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1].rstrip() + "…"
