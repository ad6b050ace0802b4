"""Each finding of a profile names its proof: a fault in a script that was not made for it.

The scripts of `benchmarks/faults*` are by people who had not seen the checks; those of
`prediction` are by people who had other aims. A finding that infers without such a proof goes
(`GONE` in test_every_check.py). One that only repeats what a setting, a counter or the trace says
needs a test instead, with a real or composed profile; those of `flatout doctor` and `flatout bench`
are all of this kind, with a composed machine for each.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from every import for_every
from flatout.diagnosing import checks

FIRST_LOOKS = {
    "COPY004": ("planted_faults-first", "gnn_01"),
    "DATA004": ("planted_faults-first", "tabular_06"),
    "DATA009": ("planted_faults_2026_12-first", "recsys_02"),
    "DATA010": ("planted_faults-first", "tagger_01"),
    "HOST005": ("planted_faults-first", "audio_02"),
    "HOST008": ("planted_faults-first", "lstm_03"),
    "HOST009": ("planted_faults-first", "recsys_01"),
    "HOST010": ("planted_faults-first", "tabular_01"),
    "HOST011": ("planted_faults_2026_12-first", "pointcloud_01"),
    "HOST012": ("planted_faults-first", "tabular_03"),
    "HOST013": ("planted_faults-first", "vae_02"),
    "HOST015": ("planted_faults-first", "timeseries_03"),
    "HOST017": ("planted_faults_2026_12-first", "vision_02"),
    "KERN001": ("planted_faults_2026_12_b-first", "speech_32"),
    "KERN006": ("planted_faults-first", "audio_03"),
    "KERN009": ("planted_faults-first", "tagger_03"),
    "KERN019": ("planted_faults-first", "autoencoder_01"),
    "KERN022": ("planted_faults_2026_12_b-first", "recsys_41"),
    "KERN023": ("planted_faults_2026_12_b-first", "mlm_31"),
    "LOOP001": ("planted_faults-first", "gan_01"),
    "LOOP006": ("planted_faults-first", "vision_05"),
    "LOOP008": ("planted_faults-first", "gpt_03"),
    "LOOP010": ("planted_faults_2026_12-first", "rl_02"),
    "LOOP014": ("planted_faults-first", "multitask_02"),
    "LOOP017": ("planted_faults-first", "diffusion_02"),
    "LOOP018": ("planted_faults_2026_12_b-first", "embed_31"),
    "MEM009": ("planted_faults_2026_12_b-first", "vision_23"),
}
"""Right before anything was changed for these scripts."""
SECOND_LOOKS = {
    "HOST018": (("planted_faults", "vae_03"), ("planted_faults_2026_12_b", "diffusion_21")),
    "LOOP007": (("planted_faults", "tagger_02"), ("planted_faults_2026_12", "hf_01")),
    "LOOP024": (("planted_faults", "gan_02"), ("planted_faults_2026_12_b", "anomaly_41")),
}
"""Made or mended after a first look, and then right in scripts of two sets."""
ONLY_FIRST = {"LOOP016": ("planted_faults-first", "vision_04")}
"""The fault came first with its cure, though on another line than the label has."""
GAINS = {
    "KERN004": ("augment", "bf16-autocast"),
    "KERN010": ("accumulation", "fused-optimizer"),
}
"""Its boost was kept in that script of `prediction`, where the finding had promised a gain."""
RENAMED = {"LOOP022": "LOOP024"}
FACTS = {
    "what a setting, or the loader's, says": {
        *("COMM003", "COMM006", "DATA013", "HOST004", "KERN002", "KERN003", "KERN011", "KERN012"),
        *("LOOP002", "LOOP003", "LOOP020"),
    },
    "what a counter or a clock says": {
        *("COMM002", "COMM008", "DATA001", "DATA002", "DATA011", "HOST003"),
        *("HOST014", "KERN015", "MEM001", "MEM004"),
    },
    "what torch says, or an object that is still alive": {
        *("LOOP004", "LOOP013", "LOOP025", "MEM005"),
    },
    "the trace's events and their shapes": {
        *("COMM001", "COPY001", "COPY002"),
        *("COPY007", "HOST001", "HOST006", "HOST007", "KERN005", "KERN007", "KERN008"),
        *("KERN020", "MEM007", "MEM008", "SYNC001"),
    },
}
"""What is found is a fact; the test of each check shows it (`test_has_a_test`)."""


@lru_cache
def _rows(root: Path, name: str) -> dict[str, Any]:
    text = (root / "benchmarks/results" / f"{name}.json").read_text(encoding="utf-8")
    rows: dict[str, Any] = json.loads(text)["figures"]["scripts"]
    return rows


def _named(root: Path, name: str, script: str) -> set[str]:
    """The codes that named a script's fault, with line, cause and cure."""
    row = _rows(root, name)[script]
    right = set(row["line"]) & set(row["cause"]) & set(row["cure"])
    assert row["verdict"] == "named" and right, (name, script)
    return {RENAMED.get(code, code) for code in right}


def test_each_finding_of_a_profile_has_one_proof() -> None:
    proven = [*FIRST_LOOKS, *SECOND_LOOKS, *ONLY_FIRST, *GAINS]
    facts = [code for codes in FACTS.values() for code in codes]
    assert sorted([*proven, *facts]) == sorted(file.code for file in checks.JOB.files())


@for_every(FIRST_LOOKS)
def test_a_first_look_named_the_fault(code: str, root: Path) -> None:
    name, script = FIRST_LOOKS[code]
    assert name.endswith("-first")
    assert code in _named(root, name, script)


@for_every(SECOND_LOOKS)
def test_second_looks_of_two_sets_named_their_faults(code: str, root: Path) -> None:
    assert len({name for name, _ in SECOND_LOOKS[code]}) == 2
    for name, script in SECOND_LOOKS[code]:
        assert code in _named(root, name, script)


@for_every(ONLY_FIRST)
def test_the_fault_came_first_with_its_cure(code: str, root: Path) -> None:
    name, script = ONLY_FIRST[code]
    row = _rows(root, name)[script]
    assert row["findings"][0][0] == code and code in row["cure"]


@for_every(GAINS)
def test_its_boost_was_kept_where_it_promised_a_gain(code: str, root: Path) -> None:
    script, boost = GAINS[code]
    row = _rows(root, "prediction")[script]
    assert row["predicted"][boost]["finding"] == code
    assert row["predicted"][boost]["gain"] > 1
    assert row["alone"][boost]["verdict"] == "kept" and row["alone"][boost]["gain"] > 1
