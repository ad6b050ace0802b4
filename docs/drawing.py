"""Draw the packages and their rooms, by pyproject.toml's import contracts.

python docs/drawing.py    # writes docs/assets/architecture.svg
"""

from __future__ import annotations

import html
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs/assets/architecture.svg"
WIDTH, HEIGHT = 1000, 760
HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" \
aria-label="The packages of flatout, their rooms, and what they exchange">
<style>
text {{ font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #16202c; }}
.name {{ font-weight: 600; font-size: 16px; }}
.note {{ fill: #57606a; font-size: 13px; }}
.room {{ font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
.box {{ fill: #f6f8fa; stroke: #8c959f; }}
.layer {{ fill: #ffffff; stroke: #d0d7de; }}
.arrow {{ stroke: #0b6bcb; stroke-width: 2; fill: none; marker-end: url(#head); }}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="#0b6bcb"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>
"""


def layers(package: str) -> list[list[str]]:
    """The rooms of a package from top to bottom, those beside each other in one list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    contract = next(item for item in contracts if item.get("containers") == [package])
    return [layer.split(" | ") for layer in contract["layers"]]


def programs() -> list[list[str]]:
    """The programs, and what all of them use."""
    folder = ROOT / "src/flatout_programs"
    names = {path.stem for path in folder.glob("*.py")} - {"__init__", "tell"}
    return [[name] for name in sorted(names)] + [["kernels", "tell"]]


def words(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}"'
    return f"<text {place}>{html.escape(text)}</text>\n"


def box(
    corner: tuple[float, float],
    size: tuple[float, float],
    name: str,
    note: str,
    rooms: list[list[str]],
) -> str:
    """A package with its rooms; a layer may use those below it."""
    (x, y), (width, height) = corner, size
    frame = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="box"'
    parts = [f"<rect {frame}/>\n", words(x + 14, y + 25, name, "name")]
    parts.append(words(x + 14, y + 44, note, "note"))
    step = (height - 62) / max(len(rooms), 1)
    for number, layer in enumerate(rooms):
        left, top = x + 14, y + 54 + number * step
        per_letter = (width - 28 - 6 * (len(layer) - 1)) / sum(len(room) + 2 for room in layer)
        for room in layer:
            wide, high = per_letter * (len(room) + 2), step - 5
            size_of = f'width="{wide:.1f}" height="{high:.1f}" rx="4" class="layer"'
            parts.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size_of}/>\n')
            parts.append(words(left + wide / 2, top + high / 2 + 4.5, room, "room", "middle"))
            left += wide + 6
    return "".join(parts)


def arrow(path: str, label: str, place: tuple[float, float], anchor: str = "middle") -> str:
    return f'<path d="{path}" class="arrow"/>\n' + words(*place, label, "note", anchor)


def picture() -> str:
    """The SVG: the host on the left, what runs in the user's Python on the right."""
    host = "the host: Python 3.11, never torch"
    agent = "in the training program: Python 3.10 and torch"
    boxes = [
        box((20, 50), (330, 590), "flatout", host, layers("flatout")),
        box((520, 50), (176, 210), "flatout_programs", "any Python from 3.7", programs()),
        box((712, 50), (268, 210), "flatout_train", "the library", layers("flatout_train")),
        box((520, 300), (460, 440), "flatout_agent", agent, layers("flatout_agent")),
        box((20, 680), (330, 60), "flatout.toml", "the plan: boosts and their gains", []),
    ]
    arrows = [
        words(20, 32, "flatout tune, run, doctor ...", "note"),
        words(520, 32, "started as files", "note"),
        words(712, 32, "import flatout, in a loop of your own", "note"),
        arrow("M520 150H352", "answers: JSON lines", (436, 142)),
        arrow("M350 400H518", "orders.json", (434, 392)),
        arrow("M520 480H352", "records: <pid>.jsonl", (436, 472)),
        arrow("M608 260V298", "imports", (616, 284), "start"),
        arrow("M846 260V298", "imports", (854, 284), "start"),
        arrow("M185 640V678", "writes and reads", (193, 664), "start"),
        arrow("M350 700H518", "its one reader: plan", (434, 692)),
    ]
    return HEAD + "".join([*boxes, *arrows]) + "</svg>\n"


def main() -> None:
    PICTURE.write_text(picture(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
