"""Machines of which less is known: any facts set to None, as where a source cannot be read."""

from __future__ import annotations

import dataclasses
import functools
import typing
from random import Random
from typing import Any


def forgotten(noun: Any, random: Random, share: float) -> Any:
    """`noun` with about `share` of the facts that may be unknown set to None, at every depth."""
    if isinstance(noun, tuple):
        return tuple(forgotten(item, random, share) for item in noun)
    if not dataclasses.is_dataclass(noun) or isinstance(noun, type):
        return noun
    values = {}
    for item in dataclasses.fields(noun):
        value = getattr(noun, item.name)
        forget = item.name in may_be_unknown(type(noun)) and random.random() < share
        values[item.name] = None if forget else forgotten(value, random, share)
    if values.get("compiler", "") is None and "compiler_searched" in values:
        values["compiler_searched"] = False  # searched for and None would say that there is none
    return dataclasses.replace(noun, **values)


@functools.cache
def may_be_unknown(noun: type[Any]) -> frozenset[str]:
    """Names of the fields that take None."""
    hints = typing.get_type_hints(noun)
    return frozenset(name for name, hint in hints.items() if type(None) in typing.get_args(hint))
