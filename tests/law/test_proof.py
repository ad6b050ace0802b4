"""A feature stays by proof: each names a committed result, or is on the list of those that wait."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import flatout_programs.backends
from every import for_every
from flatout.launching import engines
from flatout_agent import boosts

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROOF: dict[str, Any] = tomllib.loads((BENCHMARKS / "proof.toml").read_text(encoding="utf-8"))
FEATURES = {
    "boosts": boosts.names(),
    "backends": flatout_programs.backends.names(),
    "engines": engines.names(),
    "outlets": ["json", "prometheus", "screen", "web"],
}
"""The outlets are the ways in which figures and alerts leave `flatout monitor`."""
AT_MOST = {"boosts": 5, "backends": 3, "engines": 3, "outlets": 2, "unclean": 2}
"""How many may be without a proof, or with one from an unclean tree. Lower it where fewer are."""
OLDEST = timedelta(days=90)


class Proof(NamedTuple):
    """Where a feature won."""

    kind: str
    name: str
    file: str
    row: str


PROOFS = [Proof(kind, name, *proof) for kind in FEATURES for name, proof in PROOF[kind].items()]
each_proof = for_every(PROOFS, " ".join)
each_kind = for_every(FEATURES)


@cache
def result(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((BENCHMARKS / "results" / name).read_text("utf-8"))
    return document


def measured(document: dict[str, Any]) -> datetime:
    date = datetime.fromisoformat(document["date"])
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def newest() -> datetime:
    """Ages count from here, not from today: a test must not begin to fail by itself."""
    paths = (BENCHMARKS / "results").rglob("*.json")
    documents = (json.loads(path.read_text("utf-8")) for path in paths)
    return max(measured(document) for document in documents if "date" in document)


@each_kind
def test_each_feature_has_a_proof_or_waits_for_one(kind: str) -> None:
    proven, waiting = PROOF[kind], PROOF["waiting"][kind]
    assert sorted([*proven, *waiting]) == sorted(FEATURES[kind])
    assert all(waiting.values()), "each says what it waits for"


@each_kind
def test_the_list_of_those_that_wait_does_not_grow(kind: str) -> None:
    assert len(PROOF["waiting"][kind]) == AT_MOST[kind]


@each_proof
def test_the_row_shows_the_gain(proof: Proof) -> None:
    WON[proof.kind](proof.name, result(proof.file), proof.row)


@each_proof
def test_the_result_is_recent(proof: Proof) -> None:
    assert newest() - measured(result(proof.file)) <= OLDEST


@each_proof
def test_the_result_is_of_a_clean_tree(proof: Proof) -> None:
    commit = result(proof.file)["commit"]
    assert commit
    assert commit.endswith("-dirty") == (proof.file in PROOF["unclean"]["results"])


def test_the_list_of_unclean_results_does_not_grow() -> None:
    assert len(PROOF["unclean"]["results"]) == AT_MOST["unclean"]
    assert {proof.file for proof in PROOFS} >= set(PROOF["unclean"]["results"])


def _boost_was_kept(name: str, document: dict[str, Any], row: str) -> None:
    scripts = document.get("scripts")
    tried = scripts[row] if scripts else document["figures"]["rows"][row]["tried"]
    verdict, gain = tried[name]
    assert verdict == "kept"
    assert gain > 1


def _backend_was_chosen(name: str, document: dict[str, Any], row: str) -> None:
    model = document["figures"]["models"][row]
    assert model["chosen"].removesuffix("-bf16") == name
    assert model["speedup"] > 1


def _engine_ran_all(name: str, document: dict[str, Any], row: str) -> None:
    runs = document["figures"][row]["all_s"]["flatout"]
    assert row == name
    assert len(runs) == document["figures"]["rounds"]


def _outlet_was_measured(name: str, document: dict[str, Any], row: str) -> None:
    assert all(0 < figure < 2 for figure in document["figures"][row].values())


WON = {
    "boosts": _boost_was_kept,
    "backends": _backend_was_chosen,
    "engines": _engine_ran_all,
    "outlets": _outlet_was_measured,
}
