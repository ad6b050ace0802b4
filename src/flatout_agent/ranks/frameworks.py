"""Act on frameworks once they are imported, which may have begun before torch was.

`import lightning` imports torch half-way: a hook set up only then comes too late to see the import,
and too early to find the classes. So the modules are waited for from the start.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType

from flatout_agent.attach.importing import Callback

ACCELERATE = "accelerate.accelerator"
TRANSFORMERS = "transformers.trainer"
TRAINING_ARGUMENTS = "transformers.training_args"
LIGHTNING = tuple(f"{name}.trainer.trainer" for name in ("lightning.pytorch", "pytorch_lightning"))
LIGHTNING_DATA = tuple(
    f"{name}.trainer.connectors.data_connector"
    for name in ("lightning.pytorch", "pytorch_lightning")
)
FABRIC = tuple(f"{name}.fabric" for name in ("lightning.fabric", "lightning_fabric"))
MODULES = (ACCELERATE, TRANSFORMERS, TRAINING_ARGUMENTS, *LIGHTNING, *LIGHTNING_DATA, *FABRIC)

_loaded: dict[str, ModuleType] = {}
_actions: dict[str, Callback] = {}


def before_torch() -> dict[str, Callback]:
    """Actions for once each of these is imported, as `importing.after_import` takes them."""
    return {name: functools.partial(_imported, name) for name in MODULES}


def _imported(name: str, module: ModuleType) -> None:
    _loaded[name] = module
    if name in _actions:
        _actions[name](module)


def when_imported(actions: Mapping[str, Callback]) -> None:
    """Call each with its module, now or later. They must not raise."""
    for name, action in actions.items():
        _actions[name] = action
        if name in _loaded:
            action(_loaded[name])
