"""Draw what a command printed as a picture of a terminal: docs/assets/demo.txt -> demo.svg.

    python docs/recording.py

The text is what a run really printed, but for the path of its report; only the colours are put in
again, by the rules of `reporting/summary.py`. The picture loads nothing from elsewhere, so it has
no font of its own.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ASSETS = Path(__file__).parent / "assets"
COMMAND = "make demo"
WIDTH = 82
STYLES = {
    r"as written": "bold",
    r"with the plan": "bold green",
    r" +[\d.]+x faster": "bold green",
    r"loss curve:": "green",
    r"may change:": "bold",
    r"kept:": "green",
    r"tried and dropped:": "bold",
    r"left out:": "bold",
}
"""What a line begins with -> its style; of a label alone where it ends in a colon."""
BACKGROUND, TEXT = "171e26", "d0d7de"
COLOURS = "484f58 ff7b72 56d364 e3b341 79c0ff d2a8ff 56d4dd d0d7de"
"""Black, red, green, yellow, blue, magenta, cyan, white."""
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" \
role="img" aria-label="What `make demo` prints">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def picture(printed: str) -> str:
    """The SVG of a terminal in which the command was called and printed this."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), color_system="standard", force_terminal=True
    )
    console.print(Text.assemble(("$ ", "cyan"), (COMMAND, "bold")))
    for line in printed.splitlines():
        console.print(styled(line), soft_wrap=True)
    colours = [rgb(colour) for colour in COLOURS.split()]
    theme = TerminalTheme(rgb(BACKGROUND), rgb(TEXT), colours)
    return console.export_svg(title="", theme=theme, code_format=FORMAT, unique_id="demo")


def styled(line: str) -> Text:
    """The line in its colour, or with its label in colour."""
    text = Text(line)
    for start, style in STYLES.items():
        if match := re.match(start, line):
            text.stylize(style, 0, match.end() if start.endswith(":") else len(line))
    return text


def rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour)
    return red, green, blue


def main() -> None:
    printed = (ASSETS / "demo.txt").read_text(encoding="utf-8")
    (ASSETS / "demo.svg").write_text(picture(printed), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
