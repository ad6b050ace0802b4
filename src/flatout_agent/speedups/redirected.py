"""Calls of a model's modules redirected to other code, and a library's patches undone.

Libraries that make models faster write on modules, classes and modeling files, and cannot undo
that. `Before` undoes all of it and says what it was. The classes below call the library's code from
outside the model, through the slot of `Module.compile`, which torch leaves out when it copies or
saves a module.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import SLOT
from flatout_agent.attach.tracebacks import first_line
from flatout_agent.speedups import nests
from flatout_agent.speedups.stand_in import StandIn

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16")
NAMES_ALONE = ("extra_repr", "_get_name")
"""Methods that a library replaces only to show its own name."""
FILES = "transformers.models."

Change = dict[str, Any]


class Before:
    """The state of a model, the modeling files and torch.nn before `library` changes them."""

    PARTS = ("_parameters", "_buffers", "_modules")

    def __init__(self, model: torch.nn.Module, library: str) -> None:
        self.library = library
        self.modules = [(module, dict(module.__dict__)) for module in model.modules()]
        self.parts = [
            (module.__dict__[name], dict(module.__dict__[name]))
            for module, _ in self.modules
            for name in self.PARTS
        ]
        self.files = [(file, dict(vars(file))) for file in _files()]
        self.forwards: list[tuple[Any, Any]] = [
            (value, value.__dict__["forward"])
            for _, names in self.files
            for value in names.values()
            if isinstance(value, type) and "forward" in value.__dict__
        ]

    def put_back(self) -> tuple[list[tuple[Any, Change]], list[tuple[Any, str, Any]], bool]:
        """(changes of modules, functions of modeling files, whether classes or parts changed)."""
        changed = [(module, _put_back(module.__dict__, names)) for module, names in self.modules]
        others_changed = sum(len(_put_back(part, names)) for part, names in self.parts) > 0
        functions = []
        for file, names in self.files:
            for name, value in _put_back(vars(file), names, self._is_its_own).items():
                original = names.get(name)
                replaced = callable(original) and not isinstance(original, type)
                if replaced and file.__name__.startswith(FILES):
                    functions.append((file, name, value))
        for kind, forward in self.forwards:
            if kind.__dict__.get("forward") is not forward:
                kind.forward = forward
                others_changed = True
        return [change for change in changed if change[1]], functions, others_changed

    def _is_its_own(self, value: Any) -> bool:
        return str(getattr(value, "__module__", "")).partition(".")[0] == self.library


def _files() -> Iterator[Any]:
    import torch

    yield torch.nn
    yield torch.nn.functional
    for name, module in list(sys.modules.items()):
        if name.startswith(FILES) and ".modeling_" in name:
            yield module


def _put_back(
    now: Change, before: Change, is_added: Callable[[Any], bool] = lambda value: True
) -> Change:
    """Make `now` what it was before; returns the changes. New names are removed if `is_added`."""
    changed = {
        name: value
        for name, value in now.items()
        if (before[name] is not value if name in before else is_added(value))
    }
    for name in changed:
        if name in before:
            now[name] = before[name]
        else:
            del now[name]
    return changed


class Tally:
    """Counts of one kernel's calls; holds no reference to the model."""

    def __init__(self) -> None:
        self.ran = self.left_alone = 0
        self.failed = ""


class FusedKernel:
    """Calls a kernel instead of the written code, if it computes the same except for rounding."""

    def __init__(self, kernel: Callable[..., Any], device: str) -> None:
        self.kernel, self.device = kernel, device
        self.tally = Tally()

    def call(self, written: Callable[..., Any], weights: Any, args: Any, kwargs: Any) -> Any:
        """Call the kernel, or `written` if the kernel does not take these tensors or fails."""
        tally = self.tally
        if tally.failed or not self._takes((*weights, *nests.tensors((args, kwargs)))):
            tally.left_alone += 1
            return written(*args, **kwargs)
        try:
            output = self.kernel(*args, **kwargs)
        except Exception as error:
            # Checkpointing ends a recomputation with an exception of its own.
            if self._is_recomputed():
                raise
            # An error of the program's own is raised once more by this call, and reaches it.
            output = written(*args, **kwargs)
            tally.failed = first_line(error)
            return output
        tally.ran += 1
        return output

    def _is_recomputed(self) -> bool:
        import torch

        current = getattr(torch._C, "_current_graph_task_id", None)
        return current is not None and current() != -1

    def _takes(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether these are plain tensors on the current device, in a plain call."""
        import torch

        if not tensors or torch.compiler.is_compiling() or torch._C._is_tracing():
            return False
        current = torch.cuda.current_device() if self.device == "cuda" else None
        return (
            all(self._is_plain(tensor, current) for tensor in tensors)
            and not torch.overrides.has_torch_function(tensors)
            and not torch._C._len_torch_dispatch_stack()
        )

    def _is_plain(self, tensor: torch.Tensor, current: int | None) -> bool:
        import torch

        is_supported = str(tensor.dtype).removeprefix("torch.") in DTYPES
        return bool(
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout is torch.strided
            and tensor.device.type == self.device
            and tensor.device.index == current
            and (is_supported or not (tensor.is_floating_point() or tensor.is_complex()))
            and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        )


class RedirectedView:
    """A module together with the settings a library gave it: `self` of the library's forward."""

    def __init__(self, module: torch.nn.Module, settings: Change) -> None:
        attributes = {name: value for name, value in settings.items() if name not in NAMES_ALONE}
        for name, value in attributes.items():
            if isinstance(value, types.MethodType) and value.__self__ is module:
                attributes[name] = types.MethodType(value.__func__, self)
        self.__dict__.update(attributes, _seen=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_seen"], name)


class ModuleCall:
    """The object in a module's slot while its calls are redirected."""

    def __init__(self, module: torch.nn.Module, settings: Change, device: str) -> None:
        self.module = module
        view: Any = RedirectedView(module, settings)
        self.kernel = FusedKernel(view.forward, device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        written: Any = self.module._call_impl
        module, kernel = self.module, self.kernel
        if self._is_watched():
            kernel.tally.left_alone += 1
            return written(*args, **kwargs)
        weights = [weight for weight in module._parameters.values() if weight is not None]
        return kernel.call(written, weights, args, kwargs)

    def _is_watched(self) -> bool:
        """Whether it has hooks or a forward of its own."""
        import torch

        module = self.module
        hooks_of_all: Any = torch.nn.modules.module
        return bool(
            "forward" in module.__dict__
            or module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or hooks_of_all._has_any_global_hook()
        )


class Function(StandIn):
    """Replaces a function of a modeling file while at least one model holds it."""

    def __init__(self, file: Any, name: str, kernel: FusedKernel) -> None:
        self.kernel = kernel
        self.original = original = getattr(file, name)

        @functools.wraps(original)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if not self.holders:
                return original(*args, **kwargs)
            return kernel.call(original, (), args, kwargs)

        self.stand_in = stand_in
        super().__init__(file, {name: stand_in})


_functions: dict[tuple[str, str], Function] = {}
"""The functions of this process: two models of one type share their modeling file."""


class RedirectedCalls:
    """All redirected calls of one target; keeps no model alive."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.modules: list[weakref.ref[Any]] = []
        self.tallies: list[Tally] = []
        self.functions: list[Function] = []

    def module(self, module: torch.nn.Module, settings: Change) -> None:
        """Redirect to `settings["forward"]`, unless the slot or the forward is taken."""
        if "forward" in module.__dict__ or module.__dict__.get(SLOT) is not None:
            return
        call = module.__dict__[SLOT] = ModuleCall(module, settings, self.device)
        self.modules.append(weakref.ref(module))
        self.tallies.append(call.kernel.tally)

    def function(self, file: Any, name: str, kernel: Callable[..., Any]) -> None:
        """Redirect to `kernel` for all code that looks `name` up in `file`."""
        key = (file.__name__, name)
        function = _functions.get(key)
        if function is None or getattr(file, name) not in (function.original, function.stand_in):
            calls = FusedKernel(kernel, self.device)
            function = _functions[key] = Function(file, name, calls)
        function.hold()
        self.functions.append(function)

    def undo(self) -> None:
        """Put every call back."""
        for reference in self.modules:
            module = reference()
            if module is not None and is_redirected(module):
                del module.__dict__[SLOT]
        for function in self.functions:
            function.let_go()
        self.modules, self.functions = [], []


def is_redirected(module: torch.nn.Module) -> bool:
    """Whether the object in the module's slot is ours."""
    return isinstance(module.__dict__.get(SLOT), ModuleCall)
