"""The grammars of the tools that read what installing makes: each raises AssertionError."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable

import yaml

INSTRUCTIONS = frozenset({"FROM", "RUN", "CMD", "LABEL", "EXPOSE", "ENV", "ADD", "COPY", "USER"})
INSTRUCTIONS |= {"ENTRYPOINT", "VOLUME", "WORKDIR", "ARG", "ONBUILD", "STOPSIGNAL", "SHELL"}
INSTRUCTIONS |= {"HEALTHCHECK"}
BASH = shutil.which("bash") or "sh"


def bash(lines: Iterable[str]) -> None:
    """bash reads every line, each complete in itself (they are run one by one)."""
    for line in lines:
        read = subprocess.run([BASH, "-n", "-c", line], capture_output=True, text=True, timeout=120)
        assert read.returncode == 0, f"{line}: {read.stderr}"


def powershell(lines: Iterable[str]) -> None:
    """Quotes and brackets close, no word of bash stands there, a quoted program has its &."""
    for line in lines:
        if line.startswith("#"):
            continue
        bare = re.sub(r"'(?:[^']|'')*'|\"(?:[^\"`]|`.)*\"", "Q", line)
        assert "'" not in bare and '"' not in bare, line
        for opening, closing in ("()", "[]", "{}"):
            assert bare.count(opening) == bare.count(closing), line
        assert not line.startswith(("'", '"')), f"a quoted program needs & before it: {line}"
        assert not re.search(r"&&|\|\||\bsudo\b|\bexport\b|\$\(uname", line), line
        assert not re.match(r"\w+=", line), line


def dockerfile(text: str) -> list[tuple[str, str]]:
    """The instructions with their arguments, FROM first; each RUN is read by a shell."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = [line for line in kept.replace("\\\n", " ").splitlines() if line.strip()]
    found = []
    for line in lines:
        word, _, rest = line.partition(" ")
        assert word in INSTRUCTIONS, line
        assert rest.strip(), line
        found.append((word, rest.strip()))
        if word == "RUN":
            bash([rest])
        if word == "ENV":
            assert all("=" in item for item in shlex.split(rest)), line
        if word == "CMD" and rest.startswith("["):
            words = yaml.safe_load(rest)
            assert all(isinstance(item, str) for item in words), line
    assert found[0][0] == "FROM", found[0]
    assert sum(word == "CMD" for word, _ in found) == 1
    return found
