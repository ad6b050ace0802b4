"""The language of answers that exist in several."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping

from flatout.nouns.errors import UserError
from flatout.nouns.signature import LANGUAGES

VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
"""The first one that is set decides, as usual."""


def chosen(requested: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The requested language, else the locale's if we have it, else English.

    Raises UserError for a language that we do not have.
    """
    if requested is not None:
        language = requested.lower().replace("_", "-").partition("-")[0]
        if language not in LANGUAGES:
            raise UserError(f"no language {requested!r}", f"--lang {' or '.join(LANGUAGES)}")
        return language
    language = "zh" if _of_locale(os.environ if environ is None else environ) == "zh" else "en"
    return language if _can_show(language) else "en"


def _of_locale(environ: Mapping[str, str]) -> str:
    setting = next((environ[name] for name in VARIABLES if environ.get(name)), "")
    if not setting and sys.platform == "win32":
        setting = locale.getlocale()[0] or ""  # Chinese (Simplified)_China
    return "zh" if setting.lower().startswith(("zh", "chinese")) else setting[:2].lower()


def _can_show(language: str) -> bool:
    """Whether the terminal's encoding has the language's letters."""
    if language == "en":
        return True
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "原因".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
