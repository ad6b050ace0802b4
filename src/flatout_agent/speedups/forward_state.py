"""State that a model's forward pass may change besides its outputs, saved and restored.

This is the buffers, the random state, weights that it sets itself (a codebook that follows a moving
average) and the model's notes, which it stores on itself (a hidden state, a counter, a generator, a
list of its last losses). Changes elsewhere (a file, a list of the program) are not tracked.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups import nests
from flatout_agent.speedups.stand_in import is_dense

if TYPE_CHECKING:
    import torch

Restore = Callable[[], None]
NOT_NOTES = ("_parameters", "_buffers", "_modules", "_compiled_call_impl")
MOST_FROZEN = 64 << 20
"""Bytes of weights without a gradient that a forward pass may be writing to. More of them are those
of a large model that is not trained."""
DEEPEST = 3
"""Notes inside notes are followed to this depth."""


class SavedState:
    """Saved state: calling it restores everything, any number of times."""

    def __init__(self, models: list[torch.nn.Module]) -> None:
        modules = [module for model in models for module in model.modules()]
        visited: set[int] = set()
        frozen = [p for model in models for p in model.parameters() if not p.requires_grad]
        few = sum(p.numel() * p.element_size() for p in frozen) <= MOST_FROZEN
        own = [b for model in models for b in model.buffers()] + (frozen if few else [])
        self._buffers = _contents(own)
        self._notes = [_Notes(module, visited) for module in modules]
        self._random = random_state(models)

    def __call__(self) -> None:
        for notes in self._notes:
            notes.restore_weights()
        self._random()
        self._buffers()  # after the weights: it writes to their present memory
        for notes in self._notes:
            notes.restore()

    def only_changed(self) -> None:
        """When a call has ended, restore from now on only the notes that it has changed.

        Attributes that others set on the model later (a boost that sets another `forward`) stay.
        """
        for notes in self._notes:
            notes.only_changed()


def keep(models: Iterable[torch.nn.Module]) -> SavedState:
    """Save all of it; the result restores it, any number of times."""
    return SavedState(list(models))


def random_state(models: Iterable[torch.nn.Module]) -> Restore:
    """Save the random states that a forward pass of these models draws from."""
    import torch

    on_cpu, of_python = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    on_devices = [(device, _of_device(device).get_state()) for device in devices(models)]

    def restore() -> None:
        torch.set_rng_state(on_cpu)
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
        for device, state in on_devices:
            _of_device(device).set_state(state)

    return restore


def drawn(values: Iterable[Any] = ()) -> list[Any]:
    """The states of the host's generators, and of those among these values: they compare as equal
    if no number was drawn, and none was seeded.
    """
    import torch

    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), random.getstate()]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append(_comparable(numpy.random.get_state()))
    for value in values:
        if isinstance(value, random.Random):
            states.append(value.getstate())
        elif isinstance(value, torch.Generator):
            states.append(value.get_state().numpy().tobytes())
        elif type(value).__module__.startswith("numpy.random"):
            bits = getattr(value, "bit_generator", value)
            found = value.get_state() if hasattr(value, "get_state") else bits.state
            states.append(_comparable(found))
    return states


def _comparable(state: Any) -> Any:
    """NumPy's state with bytes for arrays, whose comparison is not a single boolean."""
    if isinstance(state, dict):
        return {name: _comparable(item) for name, item in state.items()}
    if isinstance(state, tuple):
        return [_comparable(item) for item in state]
    return state.tobytes() if hasattr(state, "tobytes") else state


def random_state_of(device: torch.device) -> Restore:
    """Save the random state of this device alone."""
    generator = _of_device(device)
    state = generator.get_state()

    def restore() -> None:
        generator.set_state(state)

    return restore


def reseed(model: torch.nn.Module, seed: int) -> None:
    """Seed the generators that a forward pass of this model draws from, and no other device's."""
    import torch

    torch.default_generator.manual_seed(seed)
    for device in devices([model]):
        _of_device(device).manual_seed(seed)


def devices(models: Iterable[torch.nn.Module]) -> list[torch.device]:
    """The accelerators that hold parameters of these models."""
    all_devices = {p.device for model in models for p in model.parameters()}
    return [device for device in all_devices if device.type in ("cuda", "xpu", "mps")]


def _of_device(device: torch.device) -> torch.Generator:
    """The default generator of a device."""
    import torch

    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    module = getattr(torch, device.type)
    index = device.index if device.index is not None else module.current_device()
    generator: torch.Generator = module.default_generators[index]
    return generator


def _contents(tensors: list[torch.Tensor]) -> Restore:
    """Save the contents of these tensors; after the restore, a graph that holds them works."""
    import torch

    contents = [(tensor, tensor.detach().clone()) for tensor in tensors]
    versioned = [tensor for tensor in tensors if not tensor.is_inference()]
    versions = [tensor._version for tensor in versioned]

    def restore() -> None:
        with torch.no_grad():
            for tensor, before in contents:
                if tensor.shape == before.shape:
                    tensor.data.copy_(before)  # as data, which does not change the version
        if [tensor._version for tensor in versioned] != versions:
            _set_versions(versioned, versions)

    return restore


def _set_versions(tensors: list[torch.Tensor], versions: list[int]) -> None:
    import torch

    # An older torch cannot do this: a graph that holds them will complain.
    with contextlib.suppress(AttributeError, TypeError):
        torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


class _Notes:
    """The module's own attributes, with the contents of containers and generators."""

    def __init__(self, module: torch.nn.Module, visited: set[int]) -> None:
        """visited: ids of objects that other modules of the model hold as well."""
        self._values = vars(module)
        self._before = {
            name: value for name, value in self._values.items() if name not in NOT_NOTES
        }
        values = list(self._before.values())
        self._held = list(_held(values, 0, visited))
        self._tensors = _contents(list(_written_to(values, visited)))
        self._buffers = self._values["_buffers"]
        self._names: dict[str, Any] | None = dict(self._buffers)
        self._weights = self._values["_parameters"]
        self._own_weights: dict[str, Any] = {
            name: (weight, None if weight is None else weight.data)
            for name, weight in (self._weights.items() if type(self._weights) is dict else ())
        }
        """A ScriptModule has no dict of them, and sets none."""
        self._added: list[str] | None = None
        """Attributes to delete, or None for all new ones."""

    def only_changed(self) -> None:
        """Keep only the changes since then."""
        now, before = self._values, self._before
        self._added = [name for name in now if name not in before and name not in NOT_NOTES]
        self._before = {
            name: value for name, value in before.items() if now.get(name, MISSING) is not value
        }
        self._held = [held for held in self._held if held.changed()]
        if self._names is not None and _same(self._buffers, self._names):
            self._names = None
        self._own_weights = dict(self._set_weights())

    def _set_weights(self) -> Iterator[tuple[str, Any]]:
        """The weights that are others than before, or have other memory, as they were."""
        for name, (weight, data) in self._own_weights.items():
            same = self._weights.get(name) is weight
            if not same or (weight is not None and _memory(weight) != _memory(data)):
                yield name, (weight, data)

    def restore_weights(self) -> None:
        """Put the weights back that the forward pass has set."""
        for name, (weight, data) in list(self._set_weights()):
            self._weights[name] = weight
            if weight is not None and _memory(weight) != _memory(data):
                weight.data = data

    def restore(self) -> None:
        """Put everything else back."""
        values, added = self._values, self._added
        if added is None:
            added = [name for name in values if name not in self._before and name not in NOT_NOTES]
        for name in added:
            values.pop(name, None)
        values.update(self._before)
        for held in self._held:
            held.restore()
        self._tensors()
        if self._names is not None:  # a buffer that was replaced instead of written to
            if isinstance(self._buffers, dict):
                self._buffers.clear()
            for name, buffer in self._names.items():  # a ScriptModule has no dict, and no new names
                self._buffers[name] = buffer


class _Container:
    """The contents of a list, dict, set or deque."""

    def __init__(self, value: Any) -> None:
        self.inside = value
        self.before = value.copy()

    def changed(self) -> bool:
        """Whether its contents differ now."""
        return not _same(self.inside, self.before)

    def restore(self) -> None:
        """Put it back."""
        if not self.changed():
            return
        self.inside.clear()
        if isinstance(self.inside, (list, deque)):
            self.inside.extend(self.before)
        else:
            self.inside.update(self.before)


class _Generator:
    """The state of a random generator that the model holds, or the contents of an array."""

    def __init__(self, get_state: Callable[[], Any], set_state: Callable[[Any], Any]) -> None:
        self._put, self._before = set_state, get_state()

    def changed(self) -> bool:
        """Always true, as a change cannot be detected."""
        return True

    def restore(self) -> None:
        """Put it back."""
        self._put(self._before)


MISSING = object()
CONTAINERS = (list, dict, set, deque)
NOT_FOLLOWED = (
    *("torch", "builtins", "numpy", "types", "functools", "weakref"),
    *("flatout_agent", "flatout_train"),
)
"""Objects of these packages are not notes of the program."""


def _held(values: Iterable[Any], depth: int, visited: set[int]) -> Iterator[Any]:
    """All objects among these values that can change in place, with their contents."""
    for value in values:
        if id(value) in visited or isinstance(value, SIMPLE) or nests.is_tensor(value):
            continue
        visited.add(id(value))
        generator = _generator(value)
        if generator is not None:
            yield generator
        elif isinstance(value, tuple) and depth < DEEPEST:
            yield from _held(value, depth + 1, visited)
        elif isinstance(value, CONTAINERS) or (depth == 0 and _is_note(value)):
            container = _Container(value if isinstance(value, CONTAINERS) else vars(value))
            yield container
            if depth < DEEPEST and not isinstance(value, set):
                contents = container.before
                items = contents.values() if isinstance(contents, dict) else contents
                yield from _held(items, depth + 1, visited)


SIMPLE = (int, float, complex, str, bytes, type(None))


def _is_note(value: Any) -> bool:
    """A small object of the program's own, such as a running mean."""
    import torch

    kind = type(value)
    if isinstance(value, type) or kind.__module__.partition(".")[0] in NOT_FOLLOWED:
        return False
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)) or callable(value):
        return False
    return type(getattr(value, "__dict__", None)) is dict


def _generator(value: Any) -> _Generator | None:
    import torch

    if isinstance(value, torch.Generator):
        return _Generator(value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return _Generator(value.getstate, value.setstate)
    if type(value).__module__ == "numpy" and hasattr(value, "__setitem__"):  # no scalar
        if not value.flags.writeable:
            return None
        return _Generator(value.copy, lambda before: value.__setitem__(Ellipsis, before))
    if not type(value).__module__.startswith("numpy.random"):
        return None
    if hasattr(value, "get_state"):
        return _Generator(value.get_state, value.set_state)
    bits = getattr(value, "bit_generator", value)
    return _Generator(lambda: bits.state, lambda state: setattr(bits, "state", state))


def _written_to(values: list[Any], visited: set[int]) -> Iterator[torch.Tensor]:
    """Tensors among these values that a forward pass may write into."""
    import torch

    for tensor in nests.tensors(values):
        overlaps = any(s == 0 and n > 1 for s, n in zip(_strides(tensor), tensor.shape))  # noqa: B905
        if id(tensor) in visited or isinstance(tensor, torch.nn.Parameter) or overlaps:
            continue
        visited.add(id(tensor))
        yield tensor


def _memory(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    """Where its elements are, or zeros if it is not a plain tensor."""
    import torch

    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and is_dense(tensor)
    plain = plain and not tensor.is_meta
    return (tensor.data_ptr(), tuple(tensor.stride())) if plain and tensor.stride() else (0, ())


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    import torch

    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def _same(first: Any, second: Any) -> bool:
    """Whether both hold the same objects in the same places."""
    if len(first) != len(second):
        return False
    if isinstance(first, dict):
        return all(name in second and second[name] is value for name, value in first.items())
    if isinstance(first, (list, deque)):
        return all(a is b for a, b in zip(first, second, strict=True))
    return bool(first == second)
