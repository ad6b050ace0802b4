"""Run any PyTorch training script flat out.

The library for those who write their own loop is reached by these names, and what flatout does in
a running program: `live` is `flatout run --live`, `explain` is `flatout explain` for the last
exception, and `%load_ext flatout` gives notebooks `%%flatout`. Each is imported on first use, and
for the library torch with it: `import flatout` itself does no work.
"""

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it would be work

if TYPE_CHECKING:
    from flatout.in_process.explain import explain as explain
    from flatout.in_process.live import live as live
    from flatout_train.checkpoint.checkpoint import Checkpoint as Checkpoint
    from flatout_train.devices import device as device
    from flatout_train.devices import to_device as to_device
    from flatout_train.errors import CheckpointError as CheckpointError
    from flatout_train.errors import NonfiniteError as NonfiniteError
    from flatout_train.errors import UsageError as UsageError
    from flatout_train.exporting import export as export
    from flatout_train.images.image_loader import image_loader as image_loader
    from flatout_train.loader.loader import loader as loader
    from flatout_train.step.train_step import train_step as train_step

__version__ = "0.2.0"
__all__ = [
    "Checkpoint",
    "CheckpointError",
    "NonfiniteError",
    "UsageError",
    "__version__",
    "device",
    "explain",
    "export",
    "image_loader",
    "live",
    "loader",
    "to_device",
    "train_step",
]
_MODULES = {
    "Checkpoint": "flatout_train.checkpoint.checkpoint",
    "CheckpointError": "flatout_train.errors",
    "NonfiniteError": "flatout_train.errors",
    "UsageError": "flatout_train.errors",
    "device": "flatout_train.devices",
    "explain": "flatout.in_process.explain",
    "export": "flatout_train.exporting",
    "image_loader": "flatout_train.images.image_loader",
    "live": "flatout.in_process.live",
    "load_ipython_extension": "flatout.in_process.magics",
    "loader": "flatout_train.loader.loader",
    "to_device": "flatout_train.devices",
    "train_step": "flatout_train.step.train_step",
    "unload_ipython_extension": "flatout.in_process.magics",
}
"""Public name, or one that IPython looks for -> its module."""


def __getattr__(name: str) -> object:
    import importlib

    module_name = _MODULES.get(name)
    if module_name is None:
        raise AttributeError(f"module 'flatout' has no attribute {name!r}")
    module = importlib.import_module(module_name)
    found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
