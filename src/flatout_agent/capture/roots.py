"""The models of a program with their calls, and the choice of the one to export."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from torch import nn

from flatout_agent import wire
from flatout_agent.capture import inner
from flatout_agent.capture.calls import SeenCall, SeenModel
from flatout_agent.capture.refusal import GENERATION, CannotCapture
from flatout_agent.capture.replica import unwrapped

MOST_MODELS = 6
"""The number of models held for the program's end: those called last."""
OF_A_CLASS = 2
"""The number of models of one class and size that are held, as in k-fold training: the last
ones."""
FRAMES = 8
"""The number of callers whose names for a model are read."""


@dataclass(eq=False)
class Root:
    """A model that the program itself calls."""

    model: nn.Module
    """The model, held because the program drops it when its main function returns."""
    seen: SeenModel
    names: set[str] = field(default_factory=set)
    """The program's names for it."""
    trained: bool = False
    generated: int = 0
    """Calls in which it received a cache of earlier tokens."""
    steps_in_evaluation_mode: bool = False
    """Whether the script trains it in eval() mode, as with frozen batch normalisation."""
    last_call: int = 0

    @property
    def kind(self) -> str:
        return type(self.model).__name__

    @property
    def size(self) -> int:
        return inner.size(self.model)

    @property
    def shown(self) -> str:
        names = sorted(self.names - {"self", "model", "module"})
        return f"{self.kind} ({', '.join(names)})" if names else self.kind

    def is_named(self, name: str) -> bool:
        return name == self.kind or name in self.names


@dataclass(frozen=True)
class RootChoice:
    """The model to export, its calls, and why."""

    root: Root
    calls: list[SeenCall]
    source: str
    inside: str
    notes: tuple[str, ...]


class Roots:
    """All models that were called, keyed by the user's own module."""

    def __init__(self, orders: wire.ExportOrders) -> None:
        self._orders = orders
        self._roots: dict[int, Root] = {}
        self._trained: set[int] = set()
        """ids of trained parameters; their models are held, so each id stays valid."""
        self._calls = 0

    def of(self, model: nn.Module, trains: bool) -> Root | None:
        """The entry of a model that is being called, or None if it is not to be exported."""
        own = unwrapped(model)
        root = self._roots.get(id(own))
        if root is None:
            root = self._new(own, trains)
        if root is None:
            return None
        self._calls += 1
        root.last_call = self._calls
        if trains and not root.trained:
            root.trained = True
            self._count_trained()
        return root

    def _new(self, model: nn.Module, trains: bool) -> Root | None:
        parameters = list(model.parameters())
        if not parameters:
            return None
        related = any(id(parameter) in self._trained for parameter in parameters)
        names = set(_names(model))
        wanted = self._orders.model
        asked = bool(wanted) and (wanted in names or wanted == type(model).__name__)
        if not (trains or related or asked or not self._trained):
            return None
        root = self._roots[id(model)] = Root(model, SeenModel(), names)
        self._make_room(root)
        return root

    def _make_room(self, new: Root) -> None:
        """Release models that were called long ago."""
        others = sorted((r for r in self._roots.values() if r is not new), key=_last)
        alike = [root for root in others if (root.kind, root.size) == (new.kind, new.size)]
        gone = alike[: len(alike) + 1 - OF_A_CLASS] if len(alike) >= OF_A_CLASS else []
        gone += others[: max(0, len(self._roots) - MOST_MODELS - len(gone))]
        for root in gone:
            self._roots.pop(id(root.model), None)
        if gone:
            self._count_trained()

    def _count_trained(self) -> None:
        """Release untrained models once one is trained."""
        trained = [root for root in self._roots.values() if root.trained]
        self._trained = {id(p) for root in trained for p in root.model.parameters()}
        for key, root in list(self._roots.items()):
            asked = self._orders.model and root.is_named(self._orders.model)
            if (
                trained
                and not root.trained
                and not asked
                and not any(id(parameter) in self._trained for parameter in root.model.parameters())
            ):
                del self._roots[key]

    def __iter__(self) -> Iterator[Root]:
        return iter(list(self._roots.values()))

    @property
    def evaluated(self) -> bool:
        """Whether some model was called in evaluation."""
        return any(root.seen.evaluated for root in self)

    def choose(self) -> RootChoice:
        """The requested model, else the evaluated one, else the largest."""
        if self._orders.model:
            name = self._orders.model
            matching = [root for root in self if root.is_named(name)]
            if matching:
                return _choice(max(matching, key=_last), "", ())
            for root in sorted(self, key=_last, reverse=True):
                if inner.named(unwrapped(root.model), name) is not None:
                    return _choice(root, name, ())
            raise self.not_called(name)
        called = [root for root in self if root.seen.calls()[0] or root.generated]
        if not called and len(list(self)):
            named = ", ".join(root.shown for root in self)
            raise CannotCapture(
                f"no call of {named} could be kept: inside torch.func (vmap, grad), or too large",
                "evaluate the model once with a batch, under torch.no_grad()",
            )
        if not called:
            raise CannotCapture(
                "the script called no model with parameters",
                "name the script that trains or evaluates the model",
            )
        best = max(called, key=lambda r: (r.seen.evaluated or r.generated > 0, r.size, r.last_call))
        generates = [root for root in called if root.generated and not root.seen.evaluated]
        if generates:
            raise CannotCapture(
                f"{generates[0].kind} is evaluated by generating text token by token", GENERATION
            )
        return _choice(best, "", _why(best, called))

    def not_called(self, name: str) -> CannotCapture:
        """The answer to a name that no model has."""
        called = ", ".join(root.shown for root in self) or "none"
        return CannotCapture(
            f"no model {name!r} was called", f"name it by its class or variable; called: {called}"
        )


def _last(root: Root) -> int:
    return root.last_call


def _choice(root: Root, inside: str, notes: tuple[str, ...]) -> RootChoice:
    calls, evaluation = root.seen.calls()
    return RootChoice(root, calls, "evaluation" if evaluation else "training", inside, notes)


def _why(best: Root, called: list[Root]) -> tuple[str, ...]:
    own = {id(parameter) for parameter in best.model.parameters()}
    others = [
        root
        for root in called
        if root is not best and not own & {id(p) for p in root.model.parameters()}
    ]
    if not others:
        return ()
    if all(root.shown == best.shown for root in others):
        return (f"{best.shown} was made several times: the last one is exported",)
    why = "it is evaluated" if best.seen.evaluated else "it is the largest"
    named = ", ".join(root.shown for root in others)
    return (f"{best.shown} is exported, since {why}; others: {named} (choose with --model)",)


def _names(model: nn.Module) -> Iterator[str]:
    """The names that the callers, innermost first, use for this model."""
    frame: FrameType | None = sys._getframe(1)
    left = FRAMES
    while frame is not None and left:
        if "flatout_agent" not in frame.f_code.co_filename:
            left -= 1
            for name, value in list(frame.f_locals.items()):
                if isinstance(value, nn.Module) and unwrapped(value) is model:
                    yield name
                elif name == "self":
                    inside = dict(getattr(value, "__dict__", {}))
                    inside.update(inside.get("_modules") or {})
                    yield from (n for n, member in inside.items() if member is model)
        frame = frame.f_back
