"""What tests start can be interrupted, wherever the tests run, and nothing of it stays.

A shell lets what it starts in the background ignore SIGINT, and a program hands that on to those
that it starts. What a test started is known by its environment, in which pytest names the test:
what is left of one that failed is ended at once and named in its report, the rest after all tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

RUN = "PYTEST_RUN"
"""Variable that tells the processes of one run from those of another."""
TEST = "PYTEST_CURRENT_TEST"
WORKER = "PYTEST_XDIST_WORKER"
SHARED = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker")
SHARED += ("flatout.running.one.watchdog", "tests/preloaded.py")
"""In a command line: it was started for all tests to come, and ends with pytest."""
LEFT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT] = []
    if not hasattr(config, "workerinput"):  # workers inherit it
        os.environ[RUN] = f"{os.getpid()}-{psutil.Process().create_time()}"
        for name in (TEST, WORKER):  # a test started this run: its own workers are no test's
            os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGQUIT", "SIGHUP"):
        if signal.getsignal(getattr(signal, name, signal.SIGINT)) is signal.SIG_IGN:
            # Ignored here as before; a program that is started gets what is usual.
            signal.signal(getattr(signal, name), lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report: pytest.TestReport = yield
    if call.when == "call" and report.failed:
        ended = end(of_run({TEST: f"{item.nodeid} (call)"}))
        if ended:
            report.sections.append(("left running, and ended now", "\n".join(ended)))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    mine = {WORKER: os.environ[WORKER]} if WORKER in os.environ else {}
    config.stash[LEFT] += end(of_run(mine))
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = config.stash[LEFT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT] += getattr(node, "workeroutput", {}).get("left", [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.stash[LEFT]:
        terminalreporter.section("left running by tests, and ended now")
        for line in config.stash[LEFT]:
            terminalreporter.line(line)


def of_run(variables: dict[str, str]) -> list[psutil.Process]:
    """Processes that tests of this run started, with these variables in their environment."""
    wanted = {RUN: os.environ[RUN], **variables}
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid()
        and TEST in (known := _environment(process))
        and wanted.items() <= known.items()
    ]


def under_orders(begins: str) -> list[psutil.Process]:
    """What still runs under orders (FLATOUT_ORDERS) whose path begins so; zombies are left out.

    Each of them may end at any time, also between two looks at it.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = _environment(process).get("FLATOUT_ORDERS", "").startswith(begins)
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(processes: list[psutil.Process]) -> list[str]:
    """Those that were really there, each in a line."""
    ended = []
    for process in processes:
        try:
            command = " ".join(process.cmdline())
            if not any(name in command for name in SHARED):
                line = f"{process.pid} {command} (started by {_environment(process).get(TEST)})"
                process.kill()
                ended.append(line)
        except psutil.Error:
            continue
    psutil.wait_procs(processes, timeout=10)
    return ended


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}
