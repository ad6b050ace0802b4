"""Test what training needs on each device that torch sees; reported as lines of JSON.

This file is started as a program by the user's own Python. Each test is announced before it runs,
so that the host knows which one crashed or hangs. After a failure the program ends, since a device
that failed once may go on failing; the rest is then tried in a fresh process.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable  # cannot be subscripted before Python 3.9

    from flatout_programs.tell import Tell

    Test = Callable[[], "str | None"]
    """Returns its figure, or raises an error."""

SMALL = 512
"""Matrices of this many rows are compared with the right result ..."""
LARGE = {"cpu": 1024, "mps": 2048, "cuda": 8192, "xpu": 4096}
"""... and these are timed."""
ENOUGH_S = 0.25
COPIED_BYTES = 256 * 2**20
TOLERANCES = {"float64": 1e-12, "float32": 2e-3, "float16": 5e-3, "bfloat16": 3e-2}
"""Relative error over a whole matrix; the user's own variables may make float32 TF32."""
CANNOT = (
    "C++ compiler",
    "compiler: cl is not found",
    "working triton",
    "compile is not supported",
    "Dynamo is not supported",
    "not yet supported for torch.compile",
    "too old to be supported by the triton",
    "gcc' failed to be",
    "Failed to find C compiler",
)
"""Messages if a part of torch.compile is missing: it cannot be tried, which other findings
report."""


class NotHereError(Exception):
    """It cannot be tried here."""


class WrongResultError(Exception):
    """The device computed a wrong result."""


class Pictures:
    """A data set with samples of an ordinary size. At the top level, so that it can be pickled."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        return torch().full((3, 224, 224), float(index))


def torch() -> Any:
    """Imported at its first use: the import itself is a test."""
    import torch

    return torch


def main(arguments: list[str], tell: Tell) -> None:
    """Run every test except those named in `arguments`, until one fails."""
    first: list[tuple[str, Test]] = [("import torch", _import), ("find devices", _device_list)]
    for name, test in first:
        if _run(name, test, tell, name in arguments) is not True:
            tell({"done": True})
            return
    for name, test in tests():
        if name not in arguments and _run(name, test, tell) is False:
            return
    tell({"done": True})


def _run(name: str, test: Test, tell: Tell, silent: bool = False) -> bool | None:
    """Run one test and report its result: passed, failed, or (None) skipped."""
    if not silent:
        tell({"begin": name, "slow": getattr(test, "func", test) in (_import, compile_)})
    began = time.perf_counter()
    passed: bool | None = True
    figure = message = None
    try:
        figure = test()
    except NotHereError as reason:
        passed, message = None, str(reason)
    except BaseException as error:
        text = " ".join(str(error).partition("\nSet TORCHDYNAMO_VERBOSE")[0].split())[:400]
        passed = False
        message = text if isinstance(error, WrongResultError) else f"{type(error).__name__}: {text}"
    seconds = round(time.perf_counter() - began, 3)
    if not silent:
        result = {"name": name, "passed": passed, "figure": figure, "message": message}
        tell({**result, "seconds": seconds})
    return passed


def tests() -> list[tuple[str, Test]]:
    """The tests possible here, on every device; torch.compile on the first one and the CPU."""
    trials: list[tuple[str, Test]] = []
    devices = _devices()
    for device in devices:
        if device != "cpu":
            trials.append((f"allocate, {device}", partial(allocate, device)))
            trials.append((f"copy to and from, {device}", partial(copy, device)))
        trials += [
            (f"matrix product {kind}, {device}", partial(multiply, device, kind))
            for kind in _kinds(device)
        ]
        trials.append((f"convolution, {device}", partial(convolve, device)))
        trials.append((f"training step, {device}", partial(train, device)))
    cards = [device for device in devices if device.startswith("cuda")]
    pairs = list(zip(cards, cards[1:] + cards[:1])) if len(cards) > 1 else []
    trials += [
        (f"copy, {source} to {target}", partial(exchange, source, target))
        for source, target in pairs
    ]
    trials += [
        (f"torch.compile, {device}", partial(compile_, device))
        for device in [*devices[:1], "cpu"]
        if device != "mps"
    ]
    trials.append(("loader with 2 workers", load))
    return list(dict(trials).items())


def _devices() -> list[str]:
    """Accelerators first."""
    library = torch()
    names = [f"cuda:{index}" for index in range(library.cuda.device_count())]
    names = names if library.cuda.is_available() else []
    if hasattr(library, "xpu") and library.xpu.is_available():
        names += [f"xpu:{index}" for index in range(library.xpu.device_count())]
    if hasattr(library.backends, "mps") and library.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def _kinds(device: str) -> list[str]:
    """Number formats that the device claims to multiply natively."""
    library = torch()
    if device == "cpu":
        return ["float32", "bfloat16"]
    if device.startswith("cuda"):
        native = library.version.hip or library.cuda.get_device_capability(device) >= (8, 0)
        return ["float64", "float32", "float16", *(["bfloat16"] if native else [])]
    return ["float32", "float16"] + (["bfloat16"] if device.startswith("xpu") else [])


def _import() -> str:
    began = time.perf_counter()
    try:
        version = torch().__version__
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise NotHereError("torch is not installed") from error
        raise
    return f"{version} in {time.perf_counter() - began:.1f} s"


def _device_list() -> str:
    return ", ".join(_devices())


def allocate(device: str) -> str:
    """Fill a gibibyte, or a quarter of the free memory, and read it back."""
    library = torch()
    rows = 2**22
    if device.startswith("cuda"):
        rows = min(rows, library.cuda.mem_get_info(device)[0] // (16 * 64))
    count = rows * 64
    total = float(library.full((rows, 64), 1.0, device=device).sum(dim=1).sum())
    if abs(total - count) > count * 1e-3:
        raise WrongResultError(f"{count} ones add up to {total:.0f}")
    return f"{count * 4 / 2**30:.2g} GiB"


def copy(device: str) -> str:
    """Host to device and back, from memory that the device may read by itself."""
    library = torch()
    there = library.arange(COPIED_BYTES // 4, dtype=library.int32)
    if device.startswith("cuda"):
        there = there.pin_memory()
    back = library.empty_like(there, pin_memory=device.startswith("cuda"))
    on_device = there.to(device)
    to_s = _seconds(device, lambda: on_device.copy_(there, non_blocking=True))
    from_s = _seconds(device, lambda: back.copy_(on_device, non_blocking=True))
    if not library.equal(there, back):
        raise WrongResultError("the data that came back differ from what was sent")
    return f"{COPIED_BYTES / to_s / 1e9:.1f} GB/s to, {COPIED_BYTES / from_s / 1e9:.1f} GB/s from"


def multiply(device: str, kind: str) -> str:
    """Two matrices, compared with float64 on the CPU; then large ones, timed."""
    library = torch()
    dtype = getattr(library, kind)
    generator = library.Generator().manual_seed(0)
    left, right = (
        library.randn(SMALL, SMALL, generator=generator, dtype=library.float64).to(dtype)
        for _ in range(2)
    )
    product = (left.to(device) @ right.to(device)).cpu().double()
    _compare(product, left.double() @ right.double(), TOLERANCES[kind])
    size = LARGE[device.partition(":")[0]] // (4 if kind == "float64" else 1)
    large = library.randn(size, size, device=device).to(dtype)
    flops = 2 * size**3 / _seconds(device, lambda: large @ large)
    return f"{flops / 1e12:.1f} TFLOP/s" if flops > 1e12 else f"{flops / 1e9:.0f} GFLOP/s"


def convolve(device: str) -> str:
    """A convolution, compared with float64 on the CPU."""
    library = torch()
    generator = library.Generator().manual_seed(0)
    pictures = library.randn(8, 16, 32, 32, generator=generator)
    weights = library.randn(32, 16, 3, 3, generator=generator)
    conv2d = library.nn.functional.conv2d
    right = conv2d(pictures.double(), weights.double(), padding=1)
    inputs, filters = pictures.to(device), weights.to(device)
    _compare(conv2d(inputs, filters, padding=1).cpu().double(), right, TOLERANCES["float32"])
    seconds = _seconds(device, lambda: conv2d(inputs, filters, padding=1))
    library_version = library.backends.cudnn.version() if device.startswith("cuda") else None
    figure = f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
    return figure + (f", cuDNN {library_version}" if library_version else "")


def train(device: str) -> str:
    """A few steps of a small network: gradients must be as on the CPU in float64, and the loss must
    fall.
    """
    library = torch()
    library.manual_seed(0)
    layers = library.nn.Linear(32, 64), library.nn.Tanh(), library.nn.Linear(64, 1)
    model = library.nn.Sequential(*layers)
    data, target = library.randn(256, 32), library.randn(256, 1)
    exact = library.nn.Sequential(*layers).double()
    loss_of = library.nn.functional.mse_loss
    loss_of(exact(data.double()), target.double()).backward()
    right = exact[0].weight.grad.clone()
    model = model.float().to(device)
    model.zero_grad(set_to_none=True)
    data, target = data.to(device), target.to(device)
    optimizer = library.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        loss = loss_of(model(data), target)
        loss.backward()
        if step == 0:
            _compare(model[0].weight.grad.cpu().double(), right, 1e-2)
        optimizer.step()
        losses.append(loss.item())
    if not losses[-1] < losses[0]:
        raise WrongResultError(f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}")
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}"


def exchange(source: str, target: str) -> str:
    """A copy from one GPU to another, and whether it avoids the host's memory."""
    library = torch()
    values = library.arange(COPIED_BYTES // 4, dtype=library.int32, device=source)
    received = library.empty_like(values, device=target)
    seconds = _seconds(target, lambda: received.copy_(values), also=source)
    if not library.equal(received.cpu(), values.cpu()):
        raise WrongResultError("the data that arrived differ from what was sent")
    direct = library.cuda.can_device_access_peer(*(int(name[5:]) for name in (source, target)))
    way = "directly" if direct else "through the host"
    return f"{COPIED_BYTES / seconds / 1e9:.1f} GB/s {way}"


def compile_(device: str) -> str:
    """A function through torch.compile, compared with itself."""
    library = torch()
    if not hasattr(library, "compile"):
        raise NotHereError(f"torch {library.__version__} has no torch.compile")

    def plain(values: Any) -> Any:
        return library.nn.functional.gelu(values * 2 + 1).sum(dim=-1)

    values = library.randn(64, 256, device=device)
    began = time.perf_counter()
    try:
        result = library.compile(plain)(values)
    except Exception as error:
        if any(sign.lower() in str(error).lower() for sign in CANNOT):
            raise NotHereError(" ".join(str(error).split())[:200]) from error
        raise
    _compare(result.double().cpu(), plain(values).double().cpu(), 1e-3)
    return f"{time.perf_counter() - began:.1f} s to compile"


def load() -> str:
    """Batches of an ordinary size from two processes, through shared memory."""
    library = torch()
    began = time.perf_counter()
    loader = library.utils.data.DataLoader(Pictures(), batch_size=32, num_workers=2)
    sums = [float(batch[:, 0, 0, 0].sum()) for batch in loader]
    if sum(sums) != sum(range(256)):
        raise WrongResultError("the batches differ from the data set")
    return f"{256 / (time.perf_counter() - began):.0f} samples/s"


def _compare(result: Any, right: Any, tolerance: float) -> None:
    error = float((result - right).norm() / right.norm())
    if not error <= tolerance:  # also if it is not a number
        raise WrongResultError(f"the result is wrong: relative error {error:.1e}")


def _seconds(device: str, action: Callable[[], Any], also: str | None = None) -> float:
    """Time of one action: the best of several, since the device may be busy."""
    best = float("inf")
    until = time.perf_counter() + ENOUGH_S
    for count in range(100):
        _wait(device, also)
        began = time.perf_counter()
        action()
        _wait(device, also)
        ended = time.perf_counter()
        best = min(best, ended - began) if count else best  # the first one warms up
        if ended > until and count > 1:
            break
    return best


def _wait(*devices: str | None) -> None:
    """Wait until the devices have done all their work."""
    for device in devices:
        if device is not None and device != "cpu":
            module = getattr(torch(), device.partition(":")[0])
            module.synchronize(*([device] if ":" in device else []))


if __name__ == "__main__":
    from tell import begin, end  # type: ignore[import-not-found]  # a file of this folder

    main(sys.argv[1:], begin())
    end()
