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
            "this package was compiled for a CPU with %s, and this one has %s: export it here"
            % (built, here)
        )
    if options["torch"].split("+")[0].split(".")[:2] != torch.__version__.split(".")[:2]:
        raise RuntimeError(
            "this package was compiled with torch %s, and this is %s: install that, or export again"
            % (options["torch"], torch.__version__)
        )
    torch.set_num_threads(threads)
    package = torch._inductor.aoti_load_package(str(folder / "model.pt2"))

    def run(arrays: list[Any]) -> list[Any]:
        with torch.inference_mode():
            return [item.numpy() for item in package(*[torch.from_numpy(a) for a in arrays])]

    return run
