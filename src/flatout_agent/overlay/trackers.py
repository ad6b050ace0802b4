"""Experiment trackers: a trial is not an experiment and must not show up among the user's.

Most have a variable that switches them off or keeps them on this machine; a script that requests
the network by an argument is overruled after the import. TensorBoard writes through Python's
`open` like any other program, if it does not use TensorFlow for that.
"""
# ruff: noqa: PTH103, PTH118

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

from flatout_agent.overlay.overlay import Overlay

Undo = Callable[[], None]


def variables(scratch: str) -> dict[str, str]:
    """Environment variables of the trackers for a trial."""
    folder = os.path.join(scratch, "trackers")
    slashes = folder.replace(os.sep, "/")
    return {
        "WANDB_MODE": "disabled",
        "WANDB_DIR": folder,
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"file://{'' if slashes.startswith('/') else '/'}{slashes}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "COMET_AUTO_LOG_DISABLE": "1",
        "COMET_OFFLINE_DIRECTORY": folder,
        "NEPTUNE_MODE": "offline",
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "disabled",
        "SWANLAB_LOG_DIR": folder,
        "TRACKIO_DIR": folder,
    }


def set_environment(scratch: str) -> Undo:
    """Set them for this process and those it starts; returns the undo."""
    settings = variables(scratch)
    before = {name: os.environ.get(name) for name in settings}
    os.makedirs(os.path.join(scratch, "trackers"), exist_ok=True)
    os.environ.update(settings)

    def undo() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return undo


def hooks(overlay: Overlay) -> dict[str, Callable[[Any], None]]:
    """For each tracker, the action once it has been imported."""
    return {
        "wandb": lambda module: _disable_wandb(module),
        "mlflow": lambda module: _keep_mlflow_here(module, overlay),
        "comet_ml": lambda module: _offline_comet(module),
        "tensorboard": lambda module: _tensorboard_without_tensorflow(),
        "huggingface_hub": lambda module: _no_uploads(module),
    }


def _disable_wandb(wandb: Any) -> None:
    """`wandb.init(mode="online")` outranks the variable."""
    original = getattr(wandb, "init", None)
    if original is None:  # a folder of its runs, imported where it is not installed
        return

    def init(*args: Any, **options: Any) -> Any:
        return original(*args, **{**options, "mode": "disabled"})

    wandb.init = init


def _keep_mlflow_here(mlflow: Any, overlay: Overlay) -> None:
    """Keep its logs in scratch, whichever server the script names."""
    scratch_uri = variables(overlay.scratch)["MLFLOW_TRACKING_URI"]
    for name in ("set_tracking_uri", "set_registry_uri"):
        original = getattr(mlflow, name, None)
        if original is not None:
            setattr(mlflow, name, lambda uri, original=original: original(scratch_uri))


def _offline_comet(comet: Any) -> None:
    """`comet_ml.Experiment` contacts the server unless it is disabled by an argument."""
    for name in ("Experiment", "ExistingExperiment", "OfflineExperiment"):
        kind = getattr(comet, name, None)
        if isinstance(kind, type):
            _disabled_by_argument(kind)


def _disabled_by_argument(kind: Any) -> None:
    original = kind.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **{**options, "disabled": True})

    kind.__init__ = init


def _tensorboard_without_tensorflow() -> None:
    """Set TensorBoard's own flag that forbids writing through TensorFlow's C++ files."""
    name = "tensorboard.compat.notf"
    sys.modules.setdefault(name, types.ModuleType(name))


def _no_uploads(hub: Any) -> None:
    """Publish nothing from a trial: uploads to the Hub do nothing; reads and downloads work."""
    api = getattr(hub, "HfApi", None)
    if api is None:
        return

    def nothing(*args: Any, **options: Any) -> None:
        return None

    for name in ("create_commit", "upload_file", "upload_folder", "upload_large_folder"):
        original = getattr(api, name, None)
        if original is not None:
            setattr(api, name, nothing)
            if hasattr(hub, name):
                setattr(hub, name, nothing)
