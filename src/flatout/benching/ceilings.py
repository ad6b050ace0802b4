"""Ceilings of this machine: measure them, or load earlier measurements.

`measure` runs the agent's kernels in the user's interpreter and stores the results in the user's
cache folder, by machine, driver and torch. `cached` reads them at once, without a process.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flatout.benching import ceiling_run, ceiling_store
from flatout.benching.ceiling_run import CeilingOrders, Listener
from flatout.knowledge import gpus, pcie
from flatout.knowledge.gpus import GpuModel
from flatout.nouns.ceiling import Ceiling, Device
from flatout.nouns.errors import UserError
from flatout.nouns.identity import Identity
from flatout.probing.identity import identity

FOR_PROFILES = (
    "matmul-fp32",
    "matmul-tf32",
    "matmul-bf16",
    "matmul-fp16",
    "matmul-fp64",
    "matmul-cpu-fp32",
    "matmul-cpu-bf16",
    "matmul-cpu-fp64",
    "copy-device",
    "memory-cpu",
    "copy-host-to-device-pageable",
    "copy-host-to-device-pinned",
    "copy-device-to-host-pinned",
    "launch-latency",
    "launch-rate",
    "conv-nchw-fp32",
    "conv-nhwc-fp32",
    "conv-nchw-bf16",
    "conv-nhwc-bf16",
    "conv-cpu-nchw-fp32",
    "conv-cpu-nhwc-fp32",
    "conv-cpu-nchw-bf16",
    "conv-cpu-nhwc-bf16",
)
"""The ceilings an anatomy is compared with; about ten seconds with quick=True."""
ALWAYS_MEASURED = ("matmul-fp32", "matmul-cpu-fp32")
"""Those that any run over FOR_PROFILES measures; without one, a smaller run was stored."""

BY_DTYPE = re.compile(r"(?:matmul|attention|conv-nchw|conv-nhwc)-(fp64|fp32|tf32|fp16|bf16|fp8)")
BETWEEN = ("copy-device-to-device", "all-reduce")


@dataclass(frozen=True)
class CeilingRun:
    """One run of kernels."""

    machine: Identity
    torch: str
    ceilings: tuple[Ceiling, ...]
    devices: tuple[Device, ...]
    """Accelerators."""
    interrupted: bool
    """Whether Ctrl-C ended it early; later measurements are then missing."""


def measure(
    python: str,
    quick: bool = False,
    wanted: Sequence[str] = (),
    devices: Sequence[str] = (),
    listener: Listener | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Ceiling, ...]:
    """The ceilings of this machine, measured now in the interpreter `python`, and stored.

    quick: about 40 s for all, with one or two sizes each. wanted: ids (FOR_PROFILES), or empty for
    all that can be measured here. devices: cpu, cuda:0, or empty for all. Values are in each
    Ceiling's unit; one that could not be measured has the value None and says why.
    KeyboardInterrupt ends it early and is raised again once the results are stored. Raises
    UserError if torch is missing or broken.
    """
    measured = run(python, CeilingOrders(quick, tuple(wanted), tuple(devices)), listener, environ)
    if measured.interrupted:
        raise KeyboardInterrupt
    return measured.ceilings


def cached(machine: Identity) -> tuple[Ceiling, ...]:
    """Earlier measurements on this machine with this driver and torch; empty if none.

    machine: `flatout.probing.identity.identity(torch)`; without a torch version, the last
    measurement with any.
    """
    return ceiling_store.load(machine)


def for_profiles(
    python: str, tell: Callable[[str], None], measure_missing: bool = True
) -> tuple[Ceiling, ...]:
    """The ceilings a profile on this machine is compared with: stored, else measured now.

    Nothing else may run meanwhile, or the figures would be wrong. `tell` is called with what takes
    the time, and with the reason if there are none, which is not an error.
    """
    ceilings = cached(identity())
    if any(ceiling.id in ALWAYS_MEASURED for ceiling in ceilings) or not measure_missing:
        return ceilings
    tell("measuring once what this hardware can do")
    try:
        return measure(python, quick=True, wanted=FOR_PROFILES)
    except UserError as error:
        tell(f"not measured: {error.message}")
        return ()


def run(
    python: str,
    orders: CeilingOrders,
    listener: Listener | None = None,
    environ: Mapping[str, str] | None = None,
) -> CeilingRun:
    """Like `measure`, but an interruption is reported, not raised."""
    measurements = ceiling_run.run(python, orders, listener, environ)
    machine = identity(measurements.torch, measurements.python)
    by_name = {device.device: device for device in measurements.devices}
    ceilings = tuple(
        dataclasses.replace(
            ceiling,
            datasheet=sheet_figure(ceiling.id, by_name.get(ceiling.device), measurements.devices),
        )
        for ceiling in measurements.ceilings
    )
    ceiling_store.keep(machine, ceilings)
    cards = tuple(device for device in measurements.devices if device.device != "cpu")
    return CeilingRun(machine, measurements.torch or "", ceilings, cards, measurements.interrupted)


def sheet_figure(ceiling_id: str, device: Device | None, devices: Sequence[Device]) -> float | None:
    """TFLOP/s (dense) or GB/s, or None for a CPU, an unknown model or if not on the sheet.

    devices: all devices; what several do together runs at the speed of their link.
    """
    model = gpus.find(device.name, device.memory_bytes) if device and device.name else None
    if model is None:
        return None
    if (match := BY_DTYPE.fullmatch(ceiling_id)) is not None:
        dtype, peaks = match[1], model.peaks_tflop_per_s
        if dtype == "fp64":
            return peaks.get("fp64_tensor", peaks.get("fp64"))
        if dtype == "fp32" and ceiling_id.startswith("conv"):
            return peaks.get("tf32", peaks.get("fp32"))  # cuDNN uses TF32 if the GPU has it
        return peaks.get(dtype)
    if ceiling_id in ("copy-device", "triad-device"):
        return model.bandwidth_gb_per_s
    if ceiling_id.startswith("copy-") and ceiling_id.endswith("-pinned"):
        return pcie_gb_per_s(model)
    alike = len({entry.name for entry in devices if entry.name}) == 1
    if ceiling_id in BETWEEN and alike and model.nvlink_gb_per_s is not None:
        return model.nvlink_gb_per_s / 2
    return None


def pcie_gb_per_s(model: GpuModel) -> float | None:
    """GB/s of all lanes in one direction, or None if unknown or not connected by PCIe."""
    if "nvlink_c2c" in model.features:
        return None
    return pcie.gb_per_s(model.pcie_generation, model.pcie_width)
