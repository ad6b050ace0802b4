"""Run a model that TVM compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Load the library; return the function that runs it.

    Raises RuntimeError on another kind of CPU than that of the build.
    """
    import os

    os.environ["TVM_NUM_THREADS"] = str(threads)
    import tvm
    from tvm import relax
    from tvm.target import codegen

    here = str(codegen.llvm_get_system_cpu())
    if here != options["cpu"]:
        raise RuntimeError(
            f"this library was compiled for {options['cpu']}, and this is {here}: export it here"
        )

    def function(name: str) -> Any:
        library = tvm.runtime.load_module(str(folder / name))
        return relax.VirtualMachine(library, tvm.cpu())["main"]

    main = function("model.so")
    single = function("single.so") if (folder / "single.so").exists() else main
    place, axis = options["batch_axis"]

    def run(arrays: list[Any]) -> list[Any]:
        shape = arrays[place].shape
        chosen = single if len(shape) > axis and shape[axis] == 1 else main
        return [item.numpy() for item in chosen(*[tvm.runtime.tensor(item) for item in arrays])]

    return run
