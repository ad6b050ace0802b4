"""Hostile texts for `flatout explain`: no crash, and no text that takes longer than its length.

Three kinds, each from a fixed seed: bytes at random; logs of signatures cut, repeated, spliced and
bent; and for each signature texts that nearly match it, over and over (the classic way to make a
backtracking engine run away). Each text is padded by repetition to a megabyte; the slowest count.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

import record

from flatout.explaining import explaining
from flatout.knowledge import signatures

SIZE = 1_000_000
LIMIT_S_PER_MB = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=600)
    texts = parser.parse_args().texts
    chance = random.Random(6)
    explaining.book()
    crashes: list[str] = []
    slowest: list[tuple[float, str]] = []
    for number, (kind, text) in zip(range(texts), hostile(chance), strict=False):
        began = time.process_time()
        try:
            explaining.explain([(None, [text])])
        except Exception as error:
            crashes.append(f"{kind} {number}: {error!r}")
        slowest.append(((time.process_time() - began) * 1e6 / len(text), f"{kind} {number}"))
    slowest.sort(reverse=True)
    times = sorted(seconds for seconds, _ in slowest)
    figures = {
        "texts": len(times),
        "mb_each": SIZE / 1e6,
        "crashes": crashes,
        "s_per_mb": {
            "median": round(times[len(times) // 2], 4),
            "highest": round(times[-1], 4),
            "limit": LIMIT_S_PER_MB,
        },
        "over_limit": sum(seconds > LIMIT_S_PER_MB for seconds in times),
        "slowest": [f"{name}: {seconds:.3f} s/MB" for seconds, name in slowest[:5]],
    }
    record.write("explain_fuzz", figures)


def hostile(chance: random.Random) -> Iterator[tuple[str, bytes]]:
    logs = [item.log.encode() for item in sorted(signatures.every(), key=lambda item: item.id)]
    patterns = [pattern for item in signatures.every() for pattern in item.any]
    kinds = {
        "noise": lambda: chance.randbytes(SIZE),
        "letters": lambda: bytes(chance.choices(b"aA0 \n\t[](){}:'\"\\/.-_error", k=SIZE)),
        "bent": lambda: repeated(bent(chance, chance.choice(logs))),
        "spliced": lambda: repeated(
            b"".join(cut(chance, log) for log in chance.choices(logs, k=8))
        ),
        "all at once": lambda: repeated(b"".join(chance.sample(logs, k=min(60, len(logs))))),
        "one line": lambda: repeated(chance.choice(logs).replace(b"\n", b" ")),
        "nearly": lambda: repeated(nearly(chance, chance.choice(patterns))),
        "blanks": lambda: repeated(
            nearly(chance, chance.choice(patterns)).replace(b" ", b" " * 999)
        ),
        "escapes": lambda: repeated(b"\x1b[" + chance.randbytes(20) + b"\x1b]" + b"0" * 300),
    }
    while True:
        for kind, make in kinds.items():
            yield kind, make()


def repeated(text: bytes) -> bytes:
    return (text * (SIZE // max(len(text), 1) + 1))[:SIZE]


def cut(chance: random.Random, log: bytes) -> bytes:
    begin, end = sorted(chance.choices(range(len(log) + 1), k=2))
    return log[begin:end]


def bent(chance: random.Random, log: bytes) -> bytes:
    """Some bytes changed, dropped or doubled."""
    text = bytearray(log)
    for _ in range(max(len(text) // 20, 1)):
        place = chance.randrange(len(text))
        text[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        text = text or bytearray(b"?")
    return bytes(text)


def nearly(chance: random.Random, pattern: str) -> bytes:
    """The letters of a pattern without its end."""
    plain = pattern.replace("\\", "").replace("(?P", "").encode()
    return plain[: max(int(len(plain) * chance.uniform(0.5, 0.98)), 1)] + b"\n"


if __name__ == "__main__":
    main()
