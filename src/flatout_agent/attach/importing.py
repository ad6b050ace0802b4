"""Call a function right after a module has been imported by the program itself.

The agent must never import torch to find out whether the program uses it. A finder at the front of
`sys.meta_path` lets the other finders do the work and runs the callback once the module is there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

Callback = Callable[[Any], None]


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self.waiting = dict(callbacks)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        # Another one of these asks all finders too, this one as well: it is not to ask again.
        callback = self.waiting.pop(fullname)
        try:
            spec = self._others_spec(fullname, path, target)
        finally:
            self.waiting[fullname] = callback
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._finished)
        return spec

    def _others_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        return next((spec for spec in specs if spec is not None), None)

    def give_up(self) -> None:
        """Stop calling."""
        self.waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _finished(self, module: ModuleType) -> None:
        callback = self.waiting.pop(module.__name__, None)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        if callback is not None:
            callback(module)


class _Loader(importlib.abc.Loader):
    """Replaces the module's own loader until the module is complete, then gives way."""

    def __init__(self, loader: Any, finished: Callback) -> None:
        self.loader = loader
        self.finished = finished

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        if not hasattr(self.loader, "create_module"):
            return None
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module's code may look at its own loader (importlib.resources, inspect).
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.finished(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def after_import(callbacks: Mapping[str, Callback]) -> Callable[[], None]:
    """Call each function with its module once that is imported, or at once if it already is.

    The functions must not raise. Returns a function that ends the waiting.
    """
    for name in callbacks:
        if name in sys.modules:
            callbacks[name](sys.modules[name])
    waiting = {name: call for name, call in callbacks.items() if name not in sys.modules}
    finder = _Finder(waiting)
    if waiting:
        sys.meta_path.insert(0, finder)
    return finder.give_up
