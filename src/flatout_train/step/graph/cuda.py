"""The device calls of a recorded step: side streams, `torch.cuda.graph`, clean-up after a failure.

Only PyTorch's own API is used; its requirements are listed at
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from flatout_agent.speedups.graphs import captures
from flatout_train.out_of_memory import is_out_of_memory

_SYNC = "called a synchronizing CUDA operation"
_PROTOTYPE = "Synchronization debug mode"
_NOT_THE_USERS = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(__file__).parent.parent) + os.sep,
)


class CudaRecorder:
    """Steps on one CUDA (or ROCm) device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None
        """The stream of all recordings of a generation: memory that one frees can be reused only
        on the same stream."""

    def refusal(self) -> str | None:
        """Why nothing can be recorded on this device, or None if it can."""
        if self._device.type != "cuda":
            return f"the model is on {self._device.type}: graphs are recorded on CUDA devices"
        return None

    def rehearse(self, run: Callable[[], Any]) -> tuple[Any, str | None]:
        """A real step on a side stream, and where it waited for the device (None if nowhere).

        torch.cuda.graph requires such a step before a capture: objects that are bound to a stream
        (gradient accumulators) must not be bound to the default stream.
        """
        with torch.cuda.device(self._device):
            stream, current = self._stream(), torch.cuda.current_stream()
            random = torch.cuda.get_rng_state()
            stream.wait_stream(current)
            try:
                with torch.cuda.stream(stream), _waits() as waits:
                    outputs = run()
            except Exception as error:
                if is_out_of_memory(error):  # the caller repeats this step
                    torch.cuda.set_rng_state(random)
                raise
            finally:
                current.wait_stream(stream)
            for output in outputs.values():
                output.record_stream(current)
            return outputs, waits[0] if waits else None

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Capture what `run` launches; returns its outputs, and the function that replays it."""
        with torch.cuda.device(self._device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            begun: torch.cuda.CUDAGraph | None = None
            current, random = torch.cuda.current_stream(), torch.cuda.get_rng_state()
            # thread_local: loader threads may continue to pin memory and copy batches
            recording = torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream(),
                capture_error_mode="thread_local",
            )
            try:
                with recording:
                    begun = graph
                    outputs = run()
            except BaseException:
                captures.clean_up(current, random, [self._pool], begun)
                self.renew()
                raise
            return outputs, graph.replay

    def renew(self) -> None:
        """Start a new generation of recordings, with its own pool and stream; all were dropped.

        A pool whose last graph was freed cannot be used again. And from torch 2.12 on, freeing a
        graph also frees the cuBLAS workspaces of its stream, even if other graphs have captured
        their addresses (pytorch#193402): so no graph may be freed before all others of its stream
        are out of use.
        """
        self._pool = self._side = None

    def _stream(self) -> torch.cuda.Stream:
        if self._side is None:
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return self._side


@contextlib.contextmanager
def _waits() -> Iterator[list[str]]:
    """Collect where the host waits for the device, by torch's sync debug mode."""
    waits: list[str] = []
    begun_by = threading.get_ident()
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_SYNC)
        warnings.filterwarnings("always", message=_PROTOTYPE)
        shown = warnings.showwarning

        def show(message: Any, *args: Any, **kwargs: Any) -> None:
            text = str(message)
            if text.startswith(_SYNC):
                if _is_of_step(begun_by):
                    waits.append(f"the step waits for the device{_place()}")
            elif not text.startswith(_PROTOTYPE):
                shown(message, *args, **kwargs)

        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def _is_of_step(begun_by: int) -> bool:
    """Whether this thread works for the step: its own, or autograd's, which Python did not start.

    Loader threads meanwhile wait for their own copies.
    """
    thread = threading.current_thread()
    return thread.ident == begun_by or isinstance(thread, threading._DummyThread)


def _place() -> str:
    """` at file:line` of the user's innermost frame; empty if there is none."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((*_NOT_THE_USERS, "<")) and "warnings.py" not in (
            Path(frame.filename).name
        ):
            return f" at {frame.filename}:{frame.lineno}"
    return ""
