"""Measure ceilings in the user's interpreter; told in lines of JSON.

This file is started as a program, with its orders as one JSON argument. Each kernel is announced
before it runs and each size is told when it is known, so that whoever listens keeps what came
before a crash or a hang. After an error that leaves a device unusable the program ends: the rest is
then measured in a fresh process.
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
    "disk",
    "exchange",
    "cpu_against_gpu",
)
"""In this order: first what others compute with."""
MOST_S = {True: 1.0, False: 4.0}
"""For a kernel of weight 1; --quick and not."""
LEAST_S, OVERTIME_S = 0.1, 3.0
"""Every kernel gets so much, until the time for all is overdrawn by this."""
WARM_S = {True: 0.3, False: 1.0}
"""For a device's clocks to rise, before its first kernel."""


def main(arguments: list[str], tell: Tell) -> None:
    """Orders: quick, wanted (ids), devices, done (pairs of id and device), folder, and budget_s:
    for all of it, importing torch included.
    """
    if run(json.loads(arguments[0]), tell):
        tell({"done": True})


def run(orders: dict[str, Any], tell: Tell) -> bool:
    """Measure all that is wanted and not done; False: the rest needs a fresh process."""
    from flatout_programs.kernels import kernel

    until = time.perf_counter() + float(orders["budget_s"])
    kernel.forget_thread_variables()
    try:
        import torch
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        text = " ".join(str(error).split())[:300]
        tell({"error": text, "torch_missing": missing})
        return True
    found = devices(torch)
    chosen = [device for device in found if not orders["devices"] or device in orders["devices"]]
    cards = tuple(device for device in chosen if device != "cpu")
    here = kernel.Here(torch, orders["quick"], cards, orders["folder"], kernel.threads(torch))
    torch.set_num_threads(here.cores)
    tell(
        {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "devices": [_device(torch, device) for device in found],
        }
    )
    planned = [one for one in _kernels(here, tell) if _is_wanted(one, here, orders, chosen)]
    tell({"planned": [[one.id, one.device] for one in planned]})
    return _measure(here, planned, max(until - time.perf_counter(), 1.0), tell)


def devices(torch: Any) -> list[str]:
    """Accelerators first, the CPU last."""
    found: list[str] = []
    if torch.cuda.is_available():
        found += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        found += [f"xpu:{index}" for index in range(torch.xpu.device_count())]
    if hasattr(torch.backends, "mps") and torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def _device(torch: Any, device: str) -> dict[str, Any]:
    """What torch tells of it: enough for the data sheet, and to find it among the driver's."""
    told: dict[str, Any] = {"device": device}
    if device.startswith(("cuda", "xpu")):
        module = getattr(torch, device.partition(":")[0])
        facts = module.get_device_properties(device)
        told.update(name=str(facts.name), memory_bytes=int(facts.total_memory))
        uuid = str(getattr(facts, "uuid", "") or "")
        if uuid:
            told["uuid"] = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    return told


def _kernels(here: Any, tell: Tell) -> list[Any]:
    """Of all families; one that fails is told, and costs its own rows."""
    found = []
    for name in FAMILIES:
        try:
            found += importlib.import_module(f"flatout_programs.kernels.{name}").kernels(here)
        except Exception as error:  # noqa: PERF203 - once for each of ten families
            tell({"lost": name, "note": _words(error)})
    return found


def _is_wanted(one: Any, here: Any, orders: dict[str, Any], chosen: list[str]) -> bool:
    wanted = orders["wanted"]
    named = one.id in wanted if wanted else here.seen_by(one)
    return named and one.device in chosen and [one.id, one.device] not in orders["done"]


def _measure(here: Any, planned: list[Any], budget_s: float, tell: Tell) -> bool:
    from flatout_programs.kernels.kernel import Slice

    whole = Slice(budget_s)
    weights = sum(one.weight for one in planned)
    warm: set[str] = set()
    for one in planned:
        share = max(whole.left_s() * one.weight / weights, LEAST_S)
        weights -= one.weight
        most = MOST_S[here.quick] * one.weight
        told = {"id": one.id, "device": one.device, "title": one.title, "unit": one.unit}
        tell({"begin": {**told, "note": one.note}, "seconds": min(share, most)})
        if one.impossible:
            tell({"end": one.id, "note": one.impossible})
        elif whole.left_s() < -OVERTIME_S:
            tell({"end": one.id, "note": "no time was left for it"})
        elif not _one(here, one, Slice(min(share, most)), warm, tell):
            return False
    return True


def _one(here: Any, one: Any, time_slice: Any, warm: set[str], tell: Tell) -> bool:
    """Measure one kernel; whether its device can still be used afterwards."""
    from flatout_programs.kernels import sizes, timing

    torch = here.torch
    note = ""
    try:
        if one.device != "cpu" and one.device not in warm:
            warm.add(one.device)
            sizes.warm(torch, one.device, WARM_S[here.quick])
        for size, value in one.curve(time_slice):
            tell({"point": [size, value]})
    except Exception as error:
        note = _words(error)
    usable = True
    try:
        timing.wait(torch, one.device)
        if one.device.startswith("cuda"):
            torch.cuda.empty_cache()
    except Exception as error:
        note, usable = note or _words(error), False
    tell({"end": one.id, "note": note})
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
