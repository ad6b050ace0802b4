"""What is put under a name is taken back as it was, and nobody else's work is lost."""

from __future__ import annotations

from types import ModuleType

import pytest

from flatout_agent.attach.replacing import ABSENT, Replacement, in_reverse, own_value, replaced


class Base:
    def call(self) -> str:
        return "base"

    @staticmethod
    def plain() -> str:
        return "plain"


class Derived(Base):
    pass


def ours(*args: object) -> str:
    return "ours"


@pytest.fixture
def module() -> ModuleType:
    module = ModuleType("module")
    module.__dict__["name"] = ours
    return module


def test_what_a_class_inherits_shows_again() -> None:
    undo = replaced(Derived, "call", ours)
    assert Derived().call() == "ours"
    assert Base().call() == "base"
    undo()
    assert "call" not in vars(Derived)
    assert Derived().call() == "base"


def test_a_static_method_stays_one() -> None:
    own = vars(Base)["plain"]
    undo = replaced(Base, "plain", staticmethod(ours))
    assert Base().plain() == "ours"
    undo()
    assert vars(Base)["plain"] is own


def test_what_others_have_put_there_since_stays(module: ModuleType) -> None:
    undo = replaced(module, "name", "ours")
    module.__dict__["name"] = "theirs"
    undo()
    assert module.name == "theirs"
    undo = replaced(Derived, "call", ours)
    del Derived.call
    undo()
    assert Derived().call() == "base"


def test_it_is_put_and_taken_back_again_and_again_but_not_over_others(module: ModuleType) -> None:
    replacement = Replacement(module, {"name": "ours", "new": 1})
    for _ in range(2):
        replacement.put()
        replacement.put()
        assert (module.name, module.new) == ("ours", 1)
        replacement.back()
        replacement.back()
        assert module.name is ours
        assert own_value(module, "new") is ABSENT
    module.__dict__["name"] = "theirs"
    replacement.put()
    assert (module.name, module.new) == ("theirs", 1)
    replacement.back()
    assert module.name == "theirs"
    assert not hasattr(module, "new")


def test_slots_and_defaults_are_put_back() -> None:
    def function(value: int = 1) -> int:
        return value

    cell = (lambda: function).__closure__[0]  # type: ignore[index]
    undo = in_reverse(
        [replaced(function, "__defaults__", (2,)), replaced(cell, "cell_contents", 3)]
    )
    assert cell.cell_contents == 3
    undo()
    assert function() == 1


def test_of_two_the_last_goes_first(module: ModuleType) -> None:
    undo = in_reverse([replaced(module, "name", "first"), replaced(module, "name", "second")])
    assert module.name == "second"
    undo()
    assert module.name is ours
