"""What a model's forward pass may change beside its outputs, kept and put back.

Those are the buffers, the random state and what the model notes on itself (a hidden state, a
counter). What a forward pass changes elsewhere (a file, a list of the program's) is not seen.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

Restore = Callable[[], None]
NOT_NOTES = ("_parameters", "_buffers", "_modules", "_compiled_call_impl")


def keep(torch: Any, models: Iterable[Any]) -> Restore:
    """Remember it all; returns the way back, which may be called more than once."""
    models = list(models)
    restores = [random_state(torch, models), *(_buffers(torch, model) for model in models)]
    restores += [_notes(module) for model in models for module in model.modules()]

    def restore() -> None:
        for one in restores:
            one()

    return restore


def random_state(torch: Any, models: Iterable[Any]) -> Restore:
    """The random states that a forward pass of these models draws from."""
    on_cpu, of_python = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    devices = {p.device for model in models for p in model.parameters() if p.device.type == "cuda"}
    on_devices = [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def restore() -> None:
        torch.set_rng_state(on_cpu)
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
        for device, state in on_devices:
            torch.cuda.set_rng_state(state, device)

    return restore


def _buffers(torch: Any, model: Any) -> Restore:
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def restore() -> None:
        with torch.no_grad():
            for buffer, before in buffers:
                if buffer.shape == before.shape:
                    buffer.data.copy_(before)  # as data: a graph may hold the buffer's version

    return restore


def _notes(module: Any) -> Restore:
    """The module's own attributes; lists, dicts and sets also with what stood in them."""
    values = vars(module)
    before = {name: value for name, value in values.items() if name not in NOT_NOTES}
    held = [
        (value, value.copy()) for value in before.values() if isinstance(value, (list, dict, set))
    ]
    buffers, names = vars(module)["_buffers"], dict(vars(module)["_buffers"])

    def restore() -> None:
        for name in [name for name in values if name not in before and name not in NOT_NOTES]:
            del values[name]
        values.update(before)
        for value, content in held:
            value.clear()
            value.extend(content) if isinstance(value, list) else value.update(content)
        buffers.clear()
        buffers.update(names)  # a buffer that was replaced instead of written to

    return restore
