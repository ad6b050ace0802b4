"""Measure ceilings in the user's interpreter; reported as lines of JSON.

This file is started as a program, with its orders as one JSON argument. Each kernel is announced
before it runs and each size is reported as soon as it is measured, so the host keeps the results
from before a crash or a hang. After an error that leaves a device unusable the program ends; the
rest is then measured in a fresh process.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout_programs.tell import Tell

FAMILIES = (
    "launch",
    "matmul",
    "memory",
    "transfer",
    "attention",
    "convolution",
    "jpeg",
    "exchange",
    "ranks",
)
"""The order in which they are shown; `BY_VALUE` is the order in which they are measured."""
BY_VALUE = (
    *("matmul-bf16", "matmul-fp32", "copy-device", "copy-host-to-device-pinned"),
    *("copy-device-to-host-pinned", "launch-rate", "matmul-fp16", "matmul-tf32"),
    *("attention-bf16", "conv-nhwc-bf16", "matmul-cpu-fp32", "memory-cpu"),
    *("jpeg-decode-core", "launch-latency", "matmul-cpu-bf16"),
    *("copy-host-to-device-pageable", "matmul-fp8", "matmul-fp64", "conv-nchw-fp32"),
)
"""One of each kind first, so the least valuable is left out if time runs out: further devices and
all other ceilings come after these.
"""
MOST_S = {True: 1.0, False: 4.0}
"""Seconds for a kernel of weight 1, with --quick and without."""
LEAST_S, OVERTIME_S = 0.1, 3.0
"""Every kernel gets at least this, until the budget for all is exceeded by OVERTIME_S ..."""
PREPARING_S = {True: 18.0, False: 60.0}
"""... or until what prepares the measurements, none of which is in the budget, took this long."""
WARM_S = {True: 0.3, False: 1.0}
"""Warm-up of a device before its first kernel, so that its clocks rise."""


def main(arguments: list[str], tell: Tell) -> None:
    """Orders: quick, wanted (ids), devices, done (pairs of id and device), and budget_s: for
    the measurements, from the first one on.
    """
    if run(json.loads(arguments[0]), tell):
        tell({"done": True})


def run(orders: dict[str, Any], tell: Tell) -> bool:
    """Measure everything wanted and not done; returns False if the rest needs a fresh process."""
    from flatout_programs.kernels import kernel

    kernel.forget_thread_variables()
    try:
        import torch
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        text = " ".join(str(error).split())[:300]
        tell({"error": text, "torch_missing": missing})
        return True
    available = devices(torch)
    chosen = [
        device for device in available if not orders["devices"] or device in orders["devices"]
    ]
    cards = tuple(device for device in chosen if device != "cpu")
    setup = kernel.Setup(torch, orders["quick"], cards, kernel.threads(torch))
    torch.set_num_threads(setup.cores)
    tell(
        {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "devices": [_device(torch, device) for device in available],
        }
    )
    planned = [
        ceiling for ceiling in _kernels(setup, tell) if _is_wanted(ceiling, setup, orders, chosen)
    ]
    tell({"planned": [[ceiling.id, ceiling.device] for ceiling in planned]})
    return _measure(setup, by_value(planned, setup), float(orders["budget_s"]), tell)


def devices(torch: Any) -> list[str]:
    """Accelerators first, the CPU last."""
    names: list[str] = []
    if torch.cuda.is_available():
        names += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        names += [f"xpu:{index}" for index in range(torch.xpu.device_count())]
    if hasattr(torch.backends, "mps") and torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def _device(torch: Any, device: str) -> dict[str, Any]:
    """Information of torch about it: enough for the data sheet, and to match it with
    the driver's.
    """
    facts: dict[str, Any] = {"device": device}
    if device.startswith(("cuda", "xpu")):
        module = getattr(torch, device.partition(":")[0])
        properties = module.get_device_properties(device)
        facts.update(name=str(properties.name), memory_bytes=int(properties.total_memory))
        uuid = str(getattr(properties, "uuid", "") or "")
        if uuid:
            facts["uuid"] = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    return facts


def _kernels(setup: Any, tell: Tell) -> list[Any]:
    """The kernels of all families; a failing family is reported and costs only its own rows."""
    kernels = []
    for name in FAMILIES:
        try:
            kernels += importlib.import_module(f"flatout_programs.kernels.{name}").kernels(setup)
        except Exception as error:  # noqa: PERF203 - once for each of the families
            tell({"lost": name, "note": _words(error)})
    return kernels


def _is_wanted(kernel: Any, setup: Any, orders: dict[str, Any], chosen: list[str]) -> bool:
    ids = orders["wanted"]
    requested = kernel.id in ids if ids else setup.has_time_for(kernel)
    return (
        requested and kernel.device in chosen and [kernel.id, kernel.device] not in orders["done"]
    )


def by_value(kernels: list[Any], setup: Any) -> list[Any]:
    """The most valuable first; equal ones stay in order."""

    def rank(kernel: Any) -> int:
        if kernel.device in setup.accelerators[1:]:
            return len(BY_VALUE)
        return BY_VALUE.index(kernel.id) if kernel.id in BY_VALUE else len(BY_VALUE) + 1

    return sorted(kernels, key=rank)


def _measure(setup: Any, planned: list[Any], budget_s: float, tell: Tell) -> bool:
    from flatout_programs.kernels.kernel import Slice

    whole = Slice(budget_s)
    end = time.perf_counter() + budget_s + PREPARING_S[setup.quick]
    weights = sum(kernel.weight for kernel in planned)
    warm: set[str] = set()
    for kernel in planned:
        share = max(whole.remaining_s() * kernel.weight / weights, LEAST_S)
        weights -= kernel.weight
        most = MOST_S[setup.quick] * kernel.weight
        identity = {
            "id": kernel.id,
            "device": kernel.device,
            "title": kernel.title,
            "unit": kernel.unit,
        }
        tell({"begin": {**identity, "note": kernel.note}, "seconds": min(share, most)})
        if kernel.impossible:
            tell({"end": kernel.id, "note": kernel.impossible})
        elif whole.remaining_s() < -OVERTIME_S or time.perf_counter() > end:
            tell({"end": kernel.id, "note": "not measured: out of time"})
        elif not _measure_kernel(setup, kernel, Slice(min(share, most)), warm, tell):
            return False
    return True


def _measure_kernel(setup: Any, kernel: Any, time_slice: Any, warm: set[str], tell: Tell) -> bool:
    """Measure one kernel; returns whether its device can still be used afterwards."""
    from flatout_programs.kernels import sizes, stopwatch, timing

    torch = setup.torch
    note = ""
    try:
        if kernel.device != "cpu" and kernel.device not in warm:
            warm.add(kernel.device)
            with stopwatch.preparing():
                sizes.warm(torch, kernel.device, WARM_S[setup.quick])
        for size, value in kernel.curve(time_slice):
            tell({"point": [size, value]})
    except Exception as error:
        note = _words(error)
    usable = True
    try:
        timing.wait(torch, kernel.device)
        if kernel.device.startswith("cuda"):
            torch.cuda.empty_cache()
    except Exception as error:
        note, usable = note or _words(error), False
    tell({"end": kernel.id, "note": note})
    return usable


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    from tell import begin, end, load  # type: ignore[import-not-found]  # a file of this folder

    answer = begin()
    load("flatout_programs")
    load("flatout_agent")
    main(sys.argv[1:], answer)
    end()
