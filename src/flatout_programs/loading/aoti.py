"""Run a package of AOTInductor."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Load the package; return the function that runs it.

    Raises RuntimeError on a CPU that lacks the instructions it was built with.
    """
    import torch
    import torch._inductor

    order = ["DEFAULT", "AVX2", "AVX512"]
    here, built = torch.backends.cpu.get_cpu_capability(), options["isa"]
    if built != here and not (
        built in order and here in order and order.index(here) > order.index(built)
    ):
        raise RuntimeError(
            f"this package was compiled for a CPU with {built}, and this one has {here}: export"
            " it here"
        )
    if options["torch"].split("+")[0].split(".")[:2] != torch.__version__.split(".")[:2]:
        raise RuntimeError(
            f"this package was compiled with torch {options['torch']}, and this is"
            f" {torch.__version__}: install that, or export again"
        )
    torch.set_num_threads(threads)
    package = torch._inductor.aoti_load_package(str(folder / "model.pt2"))

    def run(arrays: list[Any]) -> list[Any]:
        with torch.inference_mode():
            return [item.numpy() for item in package(*[torch.from_numpy(a) for a in arrays])]

    return run
