"""A kubectl that answers as the real one did to a real API server, from a table that a test writes.

The table is JSON in $FAKE_KUBECTL: a list of [words, code, stdout, stderr]; the first entry counts
whose words are all in the command. What was asked is appended to $FAKE_KUBECTL.asked, a line each.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

table = Path(os.environ["FAKE_KUBECTL"])
words = [word for word in sys.argv[1:] if not word.startswith("--request-timeout")]
given = "" if sys.stdin is None or "-" not in words else sys.stdin.read()
with table.with_suffix(".asked").open("a") as file:
    file.write(json.dumps([words, given]) + "\n")
for needed, code, stdout, stderr in json.loads(table.read_text()):
    if all(word in words for word in needed):
        sys.stdout.write(stdout)
        sys.stderr.write(stderr)
        sys.exit(code)
sys.stderr.write(f"fake kubectl: no answer to {words}\n")
sys.exit(1)
