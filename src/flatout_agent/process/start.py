"""Start the agent in one Python process: read the orders, wait for torch, then watch and boost."""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flatout_agent import wire
from flatout_agent.attach import importing
from flatout_agent.tell.recorder import Recorder

if TYPE_CHECKING:
    from flatout_agent.process.session import Session

HELPERS = (
    "--multiprocessing-fork",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "compile_worker",
)
"""Words on the command line of processes that never train: loader workers, compiler workers."""


QUIET_S = 5.0
"""A thread that has taken no step for this long trains no more."""
NO_SCRATCH = 73
"""Exit code of a trial that could not set up its scratch folder."""


def start() -> None:
    """Called by sitecustomize before the user's program. Raises nothing that matters: see there."""
    path = os.environ.get(wire.ORDERS_ENV)
    if not path:
        return
    _heed_no_warning()
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        orders = wire.orders(file.read())
    if _is_helper():
        if _scratch(orders) is not None:
            importing.after_import(_install_scratch(orders, None))
        return
    recorder = Recorder(orders.records)
    recorder.write(_started())
    if orders.trial is None:
        atexit.register(recorder.safely, "crash", _report_crash, recorder)
    callbacks: dict[str, importing.Callback] = {}
    if orders.ranks is not None and orders.ranks.native != wire.OWN_DDP:  # it draws its own
        from flatout_agent.ranks import same_numbers

        callbacks.update(same_numbers.before_torch(orders.ranks.seed))
    if orders.ranks is not None and (orders.ranks.native or orders.ranks.size == 1):
        from flatout_agent.ranks import frameworks

        callbacks.update(frameworks.before_torch())
    if orders.trial is not None:
        random.seed(orders.trial.seed)
    for name, patch in _install_scratch(orders, recorder).items():
        callbacks[name] = _safe_callback(recorder, f"scratch: {name}", patch)
    patch_torch = callbacks.get("torch", lambda torch: None)

    def torch_imported(torch: ModuleType) -> None:
        patch_torch(torch)
        recorder.safely("start", _torch_imported, orders, recorder)

    importing.after_import({**callbacks, "torch": torch_imported})


class InThisProcess:
    """The agent in an already running program, from here to `put_back`.

    The program may have imported torch, and may have made its models and optimizers.
    """

    def __init__(
        self, orders: wire.Orders, heard: Callable[[wire.Record], None] = lambda record: None
    ) -> None:
        """heard: called with each record, as it is written; raises nothing. Raises OSError."""
        self._recorder = Recorder(orders.records, heard)
        self._recorder.write(_started())
        self._session: Session | None = None
        self._wait_no_longer = importing.after_import({"torch": lambda torch: self._begin(orders)})

    def _begin(self, orders: wire.Orders) -> None:
        self._session = self._recorder.safely("start", _torch_imported, orders, self._recorder)

    @property
    def steps(self) -> int:
        """Steps of training so far."""
        return self._session.job.steps if self._session is not None else 0

    @property
    def trains_elsewhere(self) -> bool:
        """Whether another thread than this one trains: its last step is not long ago."""
        if self._session is None or self._session.job.thread in (None, threading.get_ident()):
            return False
        return time.perf_counter() - self._session.watcher.ended < QUIET_S

    def put_back(self) -> None:
        """Remove everything from the program again; call it between two steps."""
        self._wait_no_longer()
        if self._session is not None:
            self._session.put_back()
        self._recorder.close()


def here_already() -> bool:
    """Whether this process, or the one it was forked from, was started with the agent inside."""
    return bool(os.environ.get(wire.ORDERS_ENV))


def _heed_no_warning() -> None:
    """Ignore a cluster's warning signal, which goes to all processes and would end those that do
    not know it.
    """
    number = getattr(signal, os.environ.get(wire.WARNING_ENV) or "-", None)
    if number is not None and signal.getsignal(number) == signal.SIG_DFL:
        signal.signal(number, signal.SIG_IGN)


def _is_helper() -> bool:
    return any(word in argument for argument in sys.orig_argv[1:] for word in HELPERS)


def _started() -> wire.Started:
    return wire.Started(
        pid=os.getpid(),
        argv=tuple(sys.orig_argv),
        python=sys.version.split()[0],
        executable=sys.executable,
        rank=int(os.environ.get(wire.RANK_ENV) or os.environ.get("RANK") or 0),
    )


def _scratch(orders: wire.Orders) -> wire.TrialOrders | None:
    """Where this process's files go instead, in a trial and in all ranks but the first."""
    if orders.trial is None and orders.ranks is not None and orders.ranks.scratch:
        return wire.TrialOrders(scratch=orders.ranks.scratch, protect=orders.ranks.protect)
    return orders.trial


def _install_scratch(
    orders: wire.Orders, recorder: Recorder | None
) -> dict[str, importing.Callback]:
    """Redirect what the program saves; returns actions for after certain modules are imported.

    If that fails, the program must not run: a trial must not overwrite the user's files.
    """
    trial = _scratch(orders)
    if trial is None or not trial.scratch:
        return {}
    try:
        from flatout_agent import overlay

        report = recorder.write if recorder is not None else lambda record: None
        overlay.install(trial, report, keep=_kept(orders))
        return dict(overlay.modules())
    except Exception as error:
        sys.stderr.write(f"flatout: this trial cannot be kept off the user's files: {error!r}\n")
        os._exit(NO_SCRATCH)


def _kept(orders: wire.Orders) -> tuple[str, ...]:
    """Folders that the agent itself writes to."""
    export = orders.export.folder if orders.export is not None else ""
    return orders.records, orders.pulse, export


def _report_crash(recorder: Recorder) -> None:
    from flatout_agent.attach import tracebacks

    if (error := tracebacks.ending()) is None:
        return
    recorder.write(wire.Crashed(tracebacks.text(error)))
    if "flatout_agent.process.session" in sys.modules:  # the program itself has imported torch
        recorder.safely("crash scene", _report_scene, recorder, error)


def _report_scene(recorder: Recorder, error: BaseException) -> None:
    recorder.write(scene(error))


def scene(error: BaseException) -> wire.CrashScene:
    """What the frames of an exception hold, once torch is imported. May raise."""
    from flatout_agent.process import crash_scene

    return crash_scene.of(error)


def _safe_callback(recorder: Recorder, where: str, call: Any) -> importing.Callback:
    return lambda module: recorder.safely(where, call, module)


def _torch_imported(orders: wire.Orders, recorder: Recorder) -> Session:
    import torch

    from flatout_agent.process import session  # with all that imports torch

    recorder.write(wire.TorchSeen(str(torch.__version__)))
    return session.begin(orders, recorder)
