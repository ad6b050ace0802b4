"""The signatures' files are read, and a malformed one is refused with where and what."""

from __future__ import annotations

import pytest

from flatout.knowledge import signatures
from flatout.nouns.signature import Role, Signature

GOOD = """
[family]
en = "Test"
zh = "测试"

[[signature]]
id = "port-taken"
specificity = 7
confidence = "likely"
log = '''
Error: port 8080 is taken
'''
any = ['port (?P<port>\\d+) is taken']
title = {en = "Port {port} is taken", zh = "端口 {port} 被占用"}
cause.en = \"\"\"Another program
listens on it.

It may be an earlier run.\"\"\"
cause.zh = "另一个程序在监听。"
[[signature.cure]]
en = "End it."
zh = "结束它。"
commands = ["ss -ltnp 'sport = :{port}'"]
when = "linux"
"""


def read(text: str) -> Signature:
    return signatures.family(text, "test").signatures[0]


def test_fields() -> None:
    found = read(GOOD)
    assert (found.id, found.family, found.role) == ("port-taken", "test", Role.ERROR)
    assert found.cause.en == "Another program listens on it.\n\nIt may be an earlier run."
    assert found.cure[0].when == "linux"
    assert found.near == 40
    assert found.log == "Error: port 8080 is taken\n"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("specificity = 7", "specificity = 10", "from 1 to 9"),
        ("specificity = 7", "", "specificity"),
        ("log = ", "lag = ", "unknown field lag"),
        ("Error: port 8080 is taken\n", "", "log must be text"),
        ("specificity = 7", "specificity = 7\nseverity = 1", "unknown field severity"),
        ("{port} is", "{prot} is", "no pattern captures {prot}"),
        ("{port} is", "{port!roman} is", "unknown form"),
        ('"port-taken"', '"Port taken"', "lower-case words"),
        ('zh = "结束它。"', "", "zh must be text"),
        ("when =", "wenn =", "unknown field wenn"),
        ("[[signature.cure]]", "[[signature.care]]", "unknown field care"),
        ("any = ['port (?P<port>\\d+) is taken']", "", "needs `any`"),
        ("specificity = 7", 'specificity = 7\nrole = "villain"', "villain"),
        ("[family]", "[family", "not TOML"),
    ],
)
def test_a_malformed_one_is_refused(before: str, after: str, told: str) -> None:
    assert before in GOOD
    with pytest.raises(ValueError, match=told.replace("{", r"\{")):
        read(GOOD.replace(before, after, 1))
