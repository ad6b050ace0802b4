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
    variables = os.environ if environ is None else environ
    setting = next((variables[name] for name in VARIABLES if variables.get(name)), "")
    if not setting and sys.platform == "win32":
        setting = locale.getlocale()[0] or ""  # Chinese (Simplified)_China
    if not setting.lower().startswith(("zh", "chinese")):
        return "en"
    try:  # the terminal's encoding may lack the language's letters
        "原因".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "en"
    return "zh"
