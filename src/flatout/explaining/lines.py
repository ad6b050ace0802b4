"""Lines of logs: their prefixes (ranks, times, hosts, colours) are read and removed."""

from __future__ import annotations

import datetime
import html
import re
from collections.abc import Iterator

from flatout.nouns import escapes

QUOTES = {
    "‘".encode(): b"'",
    "’".encode(): b"'",
    "“".encode(): b'"',
    "”".encode(): b'"',
    "\u00a0".encode(): b" ",
    "\u200b".encode(): b"",
}
DAY_S = 86400.0
LEAP_YEAR = 2000
_TIME = re.compile(
    r"(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)[T _]"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)"
)
_TIME_OF_GLOG = re.compile(
    r"\b[IWEF](?P<month>\d\d)(?P<day>\d\d) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:\.\d+)?)"
)
_TIME_OF_SYSLOG = re.compile(
    r"\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day>\d\d?) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:\.\d+)?)(?: (?P<year>\d{4}))?"
)
_TIME_OF_DAY = re.compile(
    r"^\W{0,2}(?P<hour>[012]\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)"
)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_PREFIX = re.compile(
    r"\s{0,8}(?:"
    r"\[?(?:local_)?rank[ _:]?(?P<rank>\d{1,5})\]?:\s?"
    r"|\[default(?P<local>\d{1,4})\]:\s?"  # torchrun --tee
    r"|(?P<srun>\d{1,5}): "  # srun --label
    r"|\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>:\s?"  # mpirun --tag-output
    r"|\((?:[\w.:-]+ )?pid=\d+(?:, ip=[\d.]+)?\)(?: |$)"  # Ray, vLLM
    rf"|\[?\d{{4}}[-/]\d\d?[-/]\d\d?[T _]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\]?:?\s{{0,3}}"
    rf"|\[?{_CLOCK}\]?\s{{1,3}}"
    rf"|\[[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} +\d+ {_CLOCK} \d{{4}}\] "  # dmesg -T
    rf"|[A-Z][a-z]{{2}} +\d+ {_CLOCK} [\w.-]+ (?:[\w.-]+(?:\[\d+\])?: )?"  # syslog
    r"|\[ {0,6}\d+\.\d{3,9}\] "  # dmesg
    r"|[\w.-]{1,60}\s{1,30}\| "  # docker compose
    r"|(?:[a-z][\w.-]*\d|\d+\.\d+\.\d+\.\d+): "  # pdsh
    r"|> "  # quoted in a mail or a forum
    r")",
    re.IGNORECASE,
)
_RANK_WITHIN = re.compile(r"\[(?:PG [^\]]{0,80})?rank[ _:]{0,2}(\d{1,5})\]", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"rank[-_=. ]?(\d{1,5})(?!\d)", re.IGNORECASE)
_PREFIXES_AT_MOST = 5


def clean(block: bytes) -> bytes:
    """`block` without colours and cursor movements, with plain quotes; line ends are kept."""
    if b"\x1b" in block:
        block = escapes.BYTES.sub(b"", block)
    if b"\0" in block:
        block = block.replace(b"\0", b"")
    if not block.isascii():
        for fancy, plain in QUOTES.items():
            block = block.replace(fancy, plain)
    if b"&" in block and (b"&quot;" in block or b"&#" in block or b"&gt;" in block):
        block = html.unescape(block.decode("utf-8", "replace")).encode()
    return block


def stripped(line: str) -> str:
    """`line` without the prefixes of launchers, loggers and containers."""
    end = 0
    for prefix in _prefixes(line):
        end = prefix.end()
    return line[end:]


def rank(line: str) -> int | None:
    """The rank that printed a line, by its prefix or bracket, or None if it does not say."""
    for prefix in _prefixes(line):
        for name in ("rank", "local", "srun", "mpi"):
            if prefix[name] is not None:
                return int(prefix[name])
    within = _RANK_WITHIN.search(line[:300])
    return int(within[1]) if within else None


def _prefixes(line: str) -> Iterator[re.Match[str]]:
    """The prefixes one after the other, from the line's start."""
    end = 0
    for _ in range(_PREFIXES_AT_MOST):
        match = _PREFIX.match(line, end)
        if match is None or match.end() == end:
            return
        yield match
        end = match.end()


def rank_of_file(name: str) -> int | None:
    """The rank that a path names: rank_3.log, logs/rank3/stderr.log, attempt_0/3/stderr.log."""
    numbers = _RANK_IN_NAME.findall(name)
    if numbers:
        return int(numbers[-1])
    parts = name.replace("\\", "/").split("/")
    if len(parts) > 1 and parts[-2].isdecimal():  # torchrun --log-dir: attempt_0/<rank>/stderr.log
        return int(parts[-2])
    return None


def time_s(line: str) -> float | None:
    """The time at a line's start, in seconds since one day before the year began.

    The year is ignored, because one log may mix loggers with and without it. Without a date the
    time is less than DAY_S.
    """
    start = line[:160]
    patterns = (_TIME, _TIME_OF_GLOG, _TIME_OF_SYSLOG, _TIME_OF_DAY)
    match = next((match for pattern in patterns if (match := pattern.search(start))), None)
    if match is None:
        return None
    fields: dict[str, str | None] = match.groupdict()
    days = 0
    if fields.get("day"):
        name = fields.get("name")
        month = _MONTHS.index(name.title()) + 1 if name else int(fields.get("month") or 1)
        try:
            date = datetime.date(LEAP_YEAR, month, int(fields["day"] or 1))
        except ValueError:  # the 31st of February
            return None
        days = date.timetuple().tm_yday
    hours, minutes = int(fields["hour"] or 0), int(fields["minute"] or 0)
    seconds = float((fields["second"] or "0").replace(",", "."))
    return days * DAY_S + hours * 3600 + minutes * 60 + seconds
