"""Dumps of PyTorch's flight recorder, compared by the torch of the user's interpreter."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.nouns.decoding import decode
from flatout.nouns.errors import UserError
from flatout.nouns.flight_record import FlightRecord
from flatout.probing import conversation, logs
from flatout.probing.conversation import Conversation

PICKLED = b"\x80"
MARKS = (b"version", b"pg_config")
HEAD_BYTES = 256
LIMIT_S = 120.0


def split(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The dumps among the files and folders that `words` name, and the remaining words: texts,
    logs and folders of logs.
    """
    dumps: list[Path] = []
    others: list[str] = []
    for word in words:
        found = _dumps(Path(word))
        dumps += found
        if not found or (Path(word).is_dir() and logs.files(Path(word))):
            others.append(word)
    return dumps, others


def _dumps(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return sorted(file for file in path.iterdir() if file.is_file() and is_dump(file))
        return [path] if path.is_file() and is_dump(path) else []
    except (OSError, ValueError):  # a text too long for a name
        return []


def is_dump(path: Path) -> bool:
    """Whether its first bytes are a dump's; nothing is unpickled."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return head.startswith(PICKLED) and all(mark in head for mark in MARKS)


def compare(python: str, dumps: Sequence[Path]) -> FlightRecord:
    """What the dumps of one job show together. Raises UserError if they cannot be compared."""
    command = [python, str(conversation.program("flight_recorder")), *map(str, dumps)]
    try:
        with Conversation(command, conversation.environment(os.environ)) as talk:
            deadline = time.monotonic() + LIMIT_S
            while (answer := talk.answer(deadline)) is not None:
                if answer:
                    return _record(answer, python)
            ending = "no answer in time" if talk.running else talk.how_it_ended()
    except OSError as error:
        ending = str(error.strerror or error)
    raise UserError(f"{python} cannot compare the dumps: {ending}", _hint(), 1)


def _hint() -> str:
    return "name an interpreter with a recent torch: --python"


def _record(answer: dict[str, Any], python: str) -> FlightRecord:
    if "error" in answer:
        raise UserError(f"not explained: {answer['error']}", "give the dumps of one job, unchanged")
    for key, reason in (("missing", "has no analyser for them"), ("failed", "cannot compare them")):
        if key in answer:
            raise UserError(f"the torch of {python} {reason}: {answer[key]}", _hint(), 1)
    record = decode(FlightRecord, answer)
    if record is None:
        raise UserError(f"{python} gave an answer that cannot be read", _hint(), 1)
    twice = [rank for rank, count in Counter(record.ranks).items() if count > 1]
    if twice:
        raise UserError(f"there are several dumps of rank {twice[0]}", "give those of one job")
    return record
