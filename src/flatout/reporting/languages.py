"""Which language people are answered in, where an answer exists in several."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping

from flatout.nouns.errors import UserError
from flatout.nouns.signature import LANGUAGES

VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
"""The first that is set decides, as everywhere."""


def chosen(asked: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The language asked for, else that of the locale where we have it, else English.

    Raises UserError for a language that we do not have.
    """
    if asked is not None:
        language = asked.lower().replace("_", "-").partition("-")[0]
        if language not in LANGUAGES:
            raise UserError(f"no language {asked!r}", f"--lang {' or '.join(LANGUAGES)}")
        return language
    language = "zh" if _of_locale(os.environ if environ is None else environ) == "zh" else "en"
    return language if _shown(language) else "en"


def _of_locale(environ: Mapping[str, str]) -> str:
    told = next((environ[name] for name in VARIABLES if environ.get(name)), "")
    if not told and sys.platform == "win32":
        told = locale.getlocale()[0] or ""  # Chinese (Simplified)_China
    return "zh" if told.lower().startswith(("zh", "chinese")) else told[:2].lower()


def _shown(language: str) -> bool:
    """The terminal's encoding has the language's letters."""
    if language == "en":
        return True
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "原因".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
