"""A law over many subjects, as one test that names all that break it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def for_every(
    subjects: Iterable[Any], name: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a test that takes a subject first; what else it takes are fixtures."""
    asked = tuple(subjects)
    assert asked

    def made(law: Callable[..., None]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            offenders = []
            for subject in asked:
                try:
                    law(subject, **fixtures)
                except Exception as error:
                    offenders.append(f"{name(subject)}: {type(error).__name__}: {error}")
            if offenders:
                pytest.fail("\n".join([f"{len(offenders)} of {len(asked)}", *offenders]), False)

        fixtures = list(inspect.signature(law).parameters.values())[1:]
        test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        test.__name__, test.__doc__, test.__module__ = law.__name__, law.__doc__, law.__module__
        return test

    return made
