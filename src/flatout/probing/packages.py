"""Every package in the user's interpreter, asked of that interpreter itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from flatout.nouns.errors import UserError
from flatout.nouns.listing import CondaPackage, InstalledPackage, Listing

LIMIT_S = 30.0
SCRIPT = Path(__file__).with_name("package_listing.py")


def look(python: str, limit_s: float = LIMIT_S) -> Listing:
    """What is installed there. Raises UserError where the interpreter does not answer."""
    command = [python, "-c", SCRIPT.read_text(encoding="utf-8")]
    try:
        answer = subprocess.run(
            command, capture_output=True, timeout=limit_s, check=True, stdin=subprocess.DEVNULL
        )
        return _listing(json.loads(answer.stdout.decode("utf-8", "replace")))
    except subprocess.TimeoutExpired:
        raise UserError(f"{python} did not answer within {limit_s:.0f} s", _hint(), 1) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1] if said else f"it ended with exit code {error.returncode}"
        raise UserError(f"{python} cannot be asked: {reason}", _hint(), 1) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{python} cannot be asked: {error}", _hint(), 1) from None


def _hint() -> str:
    return "name another interpreter: flatout env freeze --python PATH"


def _listing(answer: dict[str, Any]) -> Listing:
    conda = answer["conda"]
    return Listing(
        python=answer["python"],
        system=answer["system"],
        machine=answer["machine"],
        packages=tuple(_package(item) for item in answer["packages"]),
        conda=None if conda is None else tuple(CondaPackage(**item) for item in conda),
    )


def _package(item: dict[str, Any]) -> InstalledPackage:
    direct = item["direct_url"] or {}
    vcs = direct.get("vcs_info") or {}
    return InstalledPackage(
        name=item["name"],
        version=item["version"],
        installer=item["installer"],
        url=direct.get("url"),
        editable=bool((direct.get("dir_info") or {}).get("editable")),
        folder="dir_info" in direct,
        vcs=vcs.get("vcs"),
        commit=vcs.get("commit_id"),
    )
