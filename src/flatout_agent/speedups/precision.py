"""Reduced precision: what is native on this device, and a model's call inside autocast.

The boosts that lower the precision share this; each decides for itself whether it applies.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flatout_agent.attach.chain import Depth, Layer
from flatout_agent.attach.replacing import Undo, in_reverse
from flatout_agent.boost import Declined
from flatout_agent.speedups import nests
from flatout_agent.speedups.accurate_ends import AccurateEnds
from flatout_agent.speedups.kept_tensors import KeptTensors

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job

MAX_NODES = 200_000
"""Give up looking for low precision in an autograd graph after this many nodes."""

CpuInstructions = Literal["AMX", "AVX512_BF16", "Arm BF16"]


class Bf16Support(NamedTuple):
    """Whether a device multiplies bfloat16 matrices natively."""

    native: bool
    detail: str
    """The evidence, in words."""
    instructions: CpuInstructions | None = None
    """The CPU feature used, or None if it is emulated or the device is no CPU."""

    @property
    def inside_float32(self) -> bool:
        """Whether oneDNN's float-math mode takes effect; it has kernels for these features only."""
        return self.instructions in ("AMX", "Arm BF16")


def native_bf16(device: torch.device | str) -> Bf16Support:
    """Whether bfloat16 matrix multiplication is native on `device`, and the evidence.

    `device` is a torch.device, or a type, which means the current device of that type.
    """
    import torch

    kind = getattr(device, "type", device)
    if kind == "cuda":
        if torch.version.hip:
            return Bf16Support(True, "native on this AMD GPU")
        if not torch.cuda.is_available():
            return Bf16Support(False, "no CUDA device can be used")
        # torch.cuda.is_bf16_supported asks the same, but only about the current device
        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:
            return Bf16Support(True, f"native at compute capability {major}.{minor}")
        return Bf16Support(
            False, f"emulated below compute capability 8.0, this GPU has {major}.{minor}"
        )
    if kind == "mps":
        newer = torch.backends.mps.is_macos_or_newer(14, 0)
        return Bf16Support(newer, "native from macOS 14 on" if newer else "needs macOS 14")
    if kind == "xpu":
        native = torch.xpu.get_device_properties(device).has_bfloat16_conversions
        return Bf16Support(bool(native), f"{'native' if native else 'emulated'} on this XPU")
    if kind == "cpu":
        return _cpu_bf16()
    return Bf16Support(False, f"unknown for devices of type {kind}")


def bf16_inside_float32(device: str) -> bool | None:
    """Whether oneDNN's float-math mode takes effect, or None if the device is no CPU."""
    return native_bf16(device).inside_float32 if device == "cpu" else None


def matmul_precision() -> str:
    """Precision of float32 products; `mixed` if the script set it for one backend only."""
    import torch

    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # torch 2.9 and newer refuse to name one for all
        return "mixed"


def convolution_precision() -> str:
    """Precision of float32 convolutions on CUDA devices: `tf32` (PyTorch's default) or `ieee`."""
    import torch

    setting = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    if setting is None:  # before torch 2.9, where the older name warns when it is read
        setting = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    return str(setting)


def rounds_to_tf32() -> bool:
    """Whether float32 convolutions (PyTorch's default) or products use TF32 on CUDA devices."""
    return convolution_precision() == "tf32" or matmul_precision() != "highest"


def _cpu_bf16() -> Bf16Support:
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return Bf16Support(False, "this torch was built without oneDNN")
    # Also true if oneDNN only emulates it with AVX512, so it is only a first test.
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return Bf16Support(False, "oneDNN has no bfloat16 kernels for this CPU")
    if platform.machine().lower() in ("aarch64", "arm64"):
        return Bf16Support(True, "native (Arm BF16)", "Arm BF16")
    instructions: tuple[tuple[CpuInstructions, str, str], ...] = (
        ("AMX", "_is_amx_tile_supported", "amx_bf16"),
        ("AVX512_BF16", "_is_avx512_bf16_supported", "avx512_bf16"),
    )
    for name, attribute, flag in instructions:
        is_supported = getattr(torch.cpu, attribute, None)
        if is_supported() if is_supported is not None else flag in _cpu_flags():
            return Bf16Support(True, f"native ({name})", name)
    return Bf16Support(False, "this CPU has neither AMX nor AVX512_BF16, oneDNN would emulate it")


def _cpu_flags() -> frozenset[str]:
    """CPU flags that Linux reports; empty elsewhere. For torch releases that do not report them."""
    if sys.platform != "linux":
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((entry for entry in text.splitlines() if entry.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def why_not_float32(model: torch.nn.Module) -> str | None:
    """Why autocast must not wrap `model`, or None if its parameters are float32.

    Autocast leaves complex ones as they are, as in a Fourier neural operator.
    """
    import torch

    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point() or p.is_complex()}
    if dtypes == {torch.complex64}:
        return "the model's parameters are complex, which autocast leaves as they are"
    dtypes.discard(torch.complex64)
    if not dtypes.isdisjoint({torch.float64, torch.complex128}):
        return "the model is in float64: the script asks for that precision"
    if dtypes and torch.float32 not in dtypes:
        return "the model is already in half precision"
    if dtypes - {torch.float32}:
        return "parts of the model are already in half precision"
    return None if dtypes else "the model has no floating-point parameters"


def ran_in(output: Any, dtype: torch.dtype) -> bool | None:
    """Whether an operation behind `output` ran in `dtype`, or None if that cannot be determined.

    Read from the autograd graph: each node knows the dtype of what its operation returned. A
    compiled graph is one node that shows only what comes out of it.
    """
    tensors = list(nests.tensors(output))
    if any(tensor.dtype == dtype for tensor in tensors):
        return True
    stack = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    if not stack:
        return None
    visited = set(stack)
    opaque = False
    while stack and len(visited) < MAX_NODES:
        node = stack.pop()
        if any(metadata.dtype == dtype for metadata in getattr(node, "_input_metadata", ())):
            return True
        opaque = opaque or node.name().startswith("CompiledFunction")
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                stack.append(following)
    return None if opaque or stack else False


def bf16_call(model: torch.nn.Module) -> tuple[AutocastCall, Bf16Support]:
    """A layer that runs this model's calls in bfloat16, and how that runs on its device.

    Raises Declined if autocast must not wrap the model, or would be of no use.
    """
    import torch

    reason = why_not_float32(model)
    if reason is not None:
        raise Declined(reason)
    for module in model.modules():
        if isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1:
            # Autocast is on in its threads, but with that thread's dtype, which is float16.
            raise Declined("nn.DataParallel would run the model's copies in float16")
    device = next(p.device for p in model.parameters())
    bf16 = native_bf16(device)
    if not bf16.native:
        raise Declined(f"bfloat16: {bf16.detail}")
    if not torch.amp.is_autocast_available(device.type):
        raise Declined(f"torch has no autocast for devices of type {device.type}")
    return AutocastCall(model, device.type, torch.bfloat16), bf16


class AutocastCall:
    """A layer that runs a model's call under autocast; its results are float32, also those that
    the model keeps in attributes.
    """

    CHECKS = 3
    """Training calls whose graph is inspected before giving up on finding low precision."""

    def __init__(self, model: torch.nn.Module, device: str, dtype: torch.dtype) -> None:
        import torch

        from flatout_agent.speedups.failing_functions import mended_functions

        self.device, self.dtype = device, dtype
        self._mended = mended_functions()
        self._ends = AccurateEnds(model, device)
        self._kept = KeptTensors(model, self._float32)
        encoders = [m for m in model.modules() if isinstance(m, torch.nn.TransformerEncoder)]
        self._nests = any(getattr(encoder, "use_nested_tensor", False) for encoder in encoders)
        """Evaluations of padded batches take a path of torch's own through these, which gives zeros
        at the padding, and on a CPU fails under autocast."""
        self._fails = False
        """An evaluation under autocast has failed."""
        self.calls = 0
        self.left_alone = 0
        """Calls that the script itself runs under autocast."""
        self.checks = 0
        self.low: bool | None = None
        """Whether some operation ran in `dtype`, or None if not yet determined."""

    def around(self, job: Job, target: torch.nn.Module, layer: Layer | None = None) -> Undo:
        """Put it, or a layer made from it, around the model's calls; returns the undo function."""
        self._mended.hold()
        self._ends.hold()
        unwrap = job.wrap_call(target, Depth.PRECISION, layer or self.layer)
        return in_reverse([self._mended.let_go, self._ends.let_go, unwrap])

    def layer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call` under autocast."""
        import torch

        def in_autocast(*args: Any, **kwargs: Any) -> Any:
            if torch.is_autocast_enabled(self.device):
                self.left_alone += 1
                return call(*args, **kwargs)
            trains = torch.is_grad_enabled()
            if not trains and (self._nests or self._fails):
                return call(*args, **kwargs)
            made = self._in_autocast if trains else self._evaluated
            output = self._kept.around(lambda: made(call, args, kwargs))
            self.calls += 1
            if not self.low and self.checks < self.CHECKS and trains:
                self.checks += 1
                self.low = ran_in(output, self.dtype)
                self._ends.look(output, self.dtype)
            return nests.change(output, self._float32)

        return in_autocast

    def _in_autocast(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        import torch

        random_state = torch.get_rng_state() if self.calls < self.CHECKS else None

        def made() -> Any:
            if random_state is not None:  # the Guard compares such calls
                torch.set_rng_state(random_state)
            with torch.autocast(self.device, self.dtype):
                return call(*args, **kwargs)

        return self._mended.call(made)

    def _evaluated(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call without gradients: nobody compared it, so it is made as written if it fails."""
        try:
            return self._in_autocast(call, args, kwargs)
        except Exception:
            self._fails = True
        return call(*args, **kwargs)

    def _float32(self, tensor: torch.Tensor) -> Any:
        return tensor.float() if tensor.dtype == self.dtype else tensor

    def engaged(self, detail: str) -> tuple[bool, str] | None:
        """For `Applied.engaged`; `detail` says how the dtype runs on this device."""
        name = str(self.dtype).removeprefix("torch.")
        if self.calls == 0:
            if self.left_alone:
                return False, "the script runs the model under its own autocast"
            return None
        if self.low is False:
            return False, f"no operation of the model ran in {name}"
        if functions := ", ".join(self._mended.names):
            detail += f"; in float32, as it fails in {name}: {functions}"
        if self.low is None:
            return True, f"{name} {detail}; ran under autocast, its dtypes cannot be seen"
        return True, f"{name} {detail}"
