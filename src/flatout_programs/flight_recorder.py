"""Compare the dumps of PyTorch's flight recorder, to find which rank did not join which collective.

Its arguments are the dumps, one for each rank, whose number ends the file's name. They may come
from anywhere, so only plain containers are unpickled, and everything that torch's analyser would
evaluate is checked first. The comparison is torch's own
(`torch.distributed.flight_recorder`); reported as one line of JSON.
"""

from __future__ import annotations

import copy
import io
import logging
import pickle
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout_programs.tell import Tell

NUMBER = re.compile(r"(\d+)(?:\.\w+)?$")
MOST_BYTES = 512 * 2**20
MOST_FRAMES = 40
NEEDED: dict[str, Any] = {
    "profiling_name": str,
    "process_group": (tuple, list),
    "collective_seq_id": int,
    "p2p_seq_id": int,
    "record_id": int,
    "is_p2p": bool,
    "state": str,
    "input_sizes": list,
    "output_sizes": list,
    "input_dtypes": list,
    "output_dtypes": list,
    "time_created_ns": int,
}
"""The fields of each entry that the comparison reads."""


class NotADumpError(ValueError):
    """The file cannot be used as a dump; says why."""


class _Plain(pickle.Unpickler):
    """Containers, numbers and texts; anything else is refused before it can run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which no such dump does")


def main(arguments: list[str], tell: Tell) -> None:
    """Report the last call of each rank, and the analyser's findings on all of them."""
    try:
        details = {path: dump(Path(path)) for path in arguments}
    except Exception as error:
        tell({"error": _words(error)})
        return
    answer: dict[str, Any] = {
        "ranks": sorted(one["rank"] for one in details.values()),
        "world": max(
            (len(ranks) for one in details.values() for ranks in _members(one)), default=0
        ),
        "last": [
            _call(one["rank"], one["entries"][-1]) for one in details.values() if one["entries"]
        ],
    }
    try:
        answer.update(compared(details))
    except ImportError as error:
        answer["missing"] = _words(error)
    except Exception as error:
        answer["failed"] = _words(error)
    tell(answer)


def dump(path: Path) -> dict[str, Any]:
    """One rank's dump, as the analyser expects it. Raises NotADumpError."""
    match = NUMBER.search(path.name)
    if match is None:
        raise NotADumpError(f"{path.name} does not end with the number of its rank")
    if path.stat().st_size > MOST_BYTES:
        raise NotADumpError(f"{path.name} is larger than {MOST_BYTES >> 20} MiB")
    try:
        content = _Plain(io.BytesIO(path.read_bytes())).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise NotADumpError(f"{path.name} cannot be read: {_words(error)}") from None
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise NotADumpError(f"{path.name} is no dump of the flight recorder")
    entries = [_entry(entry, path.name) for entry in content["entries"]]
    rank = int(match[1])
    return {
        "host_name": f"host_rank{rank}",
        "rank": rank,
        "entries": entries,
        "version": _version(content.get("version")),
        "pg_config": _groups(content.get("pg_config"), entries),
    }


def _entry(entry: Any, name: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise NotADumpError(f"{name} holds an entry that is none")
    for key, kind in NEEDED.items():
        if not isinstance(entry.get(key), kind):
            raise NotADumpError(f"{name} holds an entry without {key}")
    frames = entry.get("frames")
    frames = frames if isinstance(frames, list) else []
    group = tuple(map(str, entry["process_group"]))
    return {**entry, "process_group": group, "frames": list(filter(None, map(_frame, frames)))}


def _frame(frame: Any) -> dict[str, Any] | None:
    if not isinstance(frame, dict):
        return None
    line = frame.get("line")
    return {
        "name": str(frame.get("name")),
        "filename": str(frame.get("filename")),
        "line": line if isinstance(line, int) else 0,
    }


def _version(version: Any) -> str:
    if not isinstance(version, str) or not re.fullmatch(r"\d{1,4}\.\d{1,4}", version):
        raise NotADumpError(f"version {version!r} of the dump is not known")
    return version


def _groups(config: Any, entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The groups by name, each with only a list of ranks, as the analyser evaluates it.

    gloo writes its default group without a name.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, group in (config if isinstance(config, dict) else {}).items():
        numbers = re.findall(r"\d+", str(group.get("ranks"))) if isinstance(group, dict) else []
        ranks = str([int(number) for number in numbers])
        groups[str(name)] = {"name": str(name), "desc": str(group.get("desc")), "ranks": ranks}
    for entry in entries:
        name, desc = entry["process_group"][0], entry["process_group"][-1]
        if name not in groups and "" in groups:
            groups[name] = {"name": name, "desc": desc, "ranks": groups[""]["ranks"]}
    groups.pop("", None)
    return groups


def compared(details: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The findings of torch's analyser: its messages, and the collectives that not all ranks joined
    alike.

    Raises ImportError if this torch has none.
    """
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig

    words = io.StringIO()
    logger = logging.getLogger("Flight Recorder")
    logger.handlers[:] = [logging.StreamHandler(words)]
    logger.propagate = False
    arguments = JobConfig().parse_args([".", "--allow-incomplete-ranks", "--mismatch_cap", "3"])
    version = next(iter(details.values()))["version"]
    found = build_db(copy.deepcopy(details), arguments, version)
    unlike = [
        _unlike(collective)
        for collective in found.collectives
        if collective.missing_ranks or not collective.pass_check
    ]
    return {"text": words.getvalue(), "unlike": unlike}


def _unlike(collective: Any) -> dict[str, Any]:
    others = (collective.mismatch_collectives or {}).items()
    return {
        "group": collective.pg_desc,
        "operation": collective.collective_name,
        "number": collective.collective_seq_id,
        "missing": sorted(collective.missing_ranks or ()),
        "stack": _stack(collective.collective_frames),
        "others": [
            {
                "rank": rank,
                "operation": other.collective_name,
                "number": other.collective_seq_id,
                "sizes": str(other.input_sizes),
                "state": other.collective_state,
                "stack": _stack(other.collective_frames),
            }
            for rank, other in others
        ],
    }


def _call(rank: int, entry: dict[str, Any]) -> dict[str, Any]:
    """A rank's last call."""
    return {
        "rank": rank,
        "operation": entry["profiling_name"],
        "number": entry["collective_seq_id"],
        "sizes": str(entry["input_sizes"]),
        "state": entry["state"],
        "stack": _stack(entry["frames"]),
    }


def _stack(frames: list[dict[str, Any]]) -> list[list[Any]]:
    """File, line and function of each frame, the innermost first."""
    return [[one["filename"], one["line"], one["name"]] for one in frames[:MOST_FRAMES]]


def _members(one: dict[str, Any]) -> list[list[int]]:
    return [
        [int(number) for number in re.findall(r"\d+", group["ranks"])]
        for group in one["pg_config"].values()
    ]


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return (
        text
        if isinstance(error, (NotADumpError, pickle.UnpicklingError))
        else (f"{type(error).__name__}: {text}")
    )


if __name__ == "__main__":
    from tell import begin, end  # type: ignore[import-not-found]  # a file of this folder

    main(sys.argv[1:], begin())
    end()
