"""JPEG images that are decoded when it is known how small they are to become.

`Shrinking` changes `convert`, `crop` and `resize` of Pillow's JPEG files. Of a plain RGB file that
is not decoded yet they take the compressed bytes and give an image that knows its size and mode but
has no pixels. `resize` to a small size decodes it at 1/2, 1/4 or 1/8; whatever else is asked of it
decodes it in full, and makes it an ordinary `PIL.Image.Image`.
"""

from __future__ import annotations

import functools
import importlib
import io
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

from flatout_agent.replacing import Replacement
from flatout_agent.speedups.images.jpeg_bytes import is_plain
from flatout_agent.speedups.images.jpeg_loading import (
    Later,
    Numbers,
    copy_of_info,
    postpone,
)

FILTERS = (None, 1, 2, 3, 5)
"""Pillow's default, and its numbers of Lanczos, bilinear, bicubic and Hamming: those that weight
what they average. A box takes pixels as a whole or not at all: of larger pixels it takes others."""
SCALES = (8, 4, 2)
MOST_BYTES = 64 << 20
"""A larger file is left to the program's own way."""
FIRST_CHECKS = 8
"""Images decoded both ways at the start ..."""
CHECK_EVERY = 101
"""... and then one in so many."""
LIMIT = 0.01
"""Mean difference, as a share of the range of a colour, that is still taken for rounding: three
times what photographs have, twice what white noise has."""
FEWEST_CHECKS = 4
"""Before the mean of so many is known, one image must be `FAR` times as different."""
FAR = 3
KNOWN = {"size", "width", "height", "mode", "info", "getbands", "format", "format_description"}
KNOWN |= {"convert", "crop", "resize", "_size", "_mode", "_copy_info"}
"""Attributes of an image that need no pixels."""
SCALED, CHECKED, DIFFERENCE, ON, OFF = range(5)
PARTS = 1_000_000
Box = tuple[float, float, float, float]


class Shrinking:
    """Stands in for methods of JPEG files while at least one loader wants it."""

    def __init__(self, plugin: Any) -> None:
        self.files: Any = plugin.JpegImageFile
        self.pillow: Any = importlib.import_module("PIL.Image")
        self.plain: Any = self.pillow.Image
        self.margin = 1.0
        """How many times as large as the result the decoded image must be at least."""
        self.holders = self._turn = 0
        self.numbers = Numbers(5)
        own = _methods(self.plain, lambda image: image, self.shrunk)
        self.undecoded: Any = _undecoded(self.plain, own)
        self._methods = Replacement(self.files, _methods(self.plain, self.late, self.shrunk))

    def hold(self, margin: float) -> None:
        """One more loader wants it."""
        self.holders += 1
        self.margin = margin
        self.numbers[ON] = 1
        self._methods.put()

    def let_go(self) -> None:
        """One loader fewer; images that are not decoded yet will be decoded in full."""
        self.holders -= 1
        if not self.holders:
            self.numbers[ON] = 0
            self._methods.back()

    @property
    def on(self) -> bool:
        """In workers, too, from this moment on."""
        return bool(self.numbers[ON]) and not self.numbers[OFF]

    @property
    def difference(self) -> float:
        """The mean of all checks."""
        return self.numbers[DIFFERENCE] / PARTS / max(1, self.numbers[CHECKED])

    def engagement(self, before: int) -> tuple[bool, str]:
        """(took hold, detail) since `before` images were decoded small."""
        count, checks = self.numbers[SCALED] - before, self.numbers[CHECKED]
        checked = f"{self.difference:.2%} of the range apart in {checks} checks"
        if self.numbers[OFF]:
            return False, f"images came out too different: {checked}"
        if not count:
            return False, "no JPEG file was shrunk far enough right after it was opened"
        return True, f"{count} images decoded at 1/2 to 1/8 of their size, {checked}"

    # Images without pixels ----------------------------------------------------------------------

    def late(self, image: Any) -> Any:
        """A copy of a JPEG file's image that is not decoded yet; None: not of this one."""
        if not self.on or type(image) is not self.files or image.mode != "RGB":
            return None
        try:
            source = self._source(image)
            return None if source is None else self.image(source, (0, 0, *image.size), image)
        except Exception:  # what the program did not expect there is raised in its own way
            return None

    def image(self, source: Source, region: tuple[int, ...], original: Any) -> Any:
        """An image without pixels: this region of the source."""
        image = self.plain.__new__(self.undecoded)
        size = (region[2] - region[0], region[3] - region[1])
        object.__getattribute__(image, "__dict__").update(
            vars(self.plain()),
            _mode="RGB",
            _size=size,
            info=copy_of_info(original),
            _source=source,
            _region=region,
        )
        source.owners.append(weakref.ref(image))
        return image

    def _source(self, image: Any) -> Source | None:
        parts = vars(image)
        if "load" in parts:
            source = parts["load"].source if type(parts["load"]) is Later else None
            return source if isinstance(source, Source) else None
        if image.decoderconfig or len(image.tile) != 1 or tuple(image.tile[0][:1]) != ("jpeg",):
            return None
        if type(image.fp) not in (io.BufferedReader, io.BytesIO) or image.tile[0][2] != 0:
            return None
        if image.fp.seek(0, io.SEEK_END) > MOST_BYTES:
            return None
        image.fp.seek(0)
        data = image.fp.read()
        if not is_plain(data):
            return None
        source = Source(self, {name: parts[name] for name in parts if "fp" not in name}, data)
        postpone(image, source, source.whole)
        source.owners.append(weakref.ref(image))
        return source

    # Decoding small -----------------------------------------------------------------------------

    def shrunk(self, image: Any, size: Any, resample: Any, box: Any, gap: Any) -> Any:
        """The resized image from a small decoding; None: not possible for this one."""
        source, region = _held(image)
        if source is None or not self.on:
            return None
        whole = (0, 0, *image.size) if box is None else tuple(box)
        scale = self._scale(image.size, tuple(size), resample, whole)
        small, scale = source.at(scale) if scale > 1 else (None, 1)
        if scale == 1:
            return None
        x, y = region[:2]
        part = tuple(number / scale for number in map(sum, zip(whole, (x, y, x, y), strict=True)))
        resized = _resized(self.plain, small, part, (size, resample), gap)
        if self._due():
            exact = self.plain.resize(source.part(region), size, resample, box, gap)
            self._compare(resized, exact)
            resized = exact
        self.numbers[SCALED] += 1
        resized.info = copy_of_info(image)
        return resized

    def _scale(self, bounds: tuple[int, int], size: Any, resample: Any, box: Any) -> int:
        """The smallest decoding that is still large enough; 1: none is."""
        if resample not in FILTERS or len(size) != 2 or len(box) != 4:
            return 1
        if min(size) < 1 or min(box) < 0 or box[2] > bounds[0] or box[3] > bounds[1]:
            return 1
        wide, high = (box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1]
        most = min(wide, high) / self.margin
        return next((scale for scale in SCALES if scale <= most), 1)

    def _due(self) -> bool:
        self._turn += 1
        return self.numbers[CHECKED] < FIRST_CHECKS or self._turn % CHECK_EVERY == 0

    def _compare(self, resized: Any, exact: Any) -> None:
        numbers = self.numbers
        error = difference(resized, exact)
        numbers[CHECKED] += 1
        numbers[DIFFERENCE] += round(error * PARTS)
        mean = self.difference if numbers[CHECKED] >= FEWEST_CHECKS else 0.0
        if error > FAR * LIMIT or mean > LIMIT:
            numbers[OFF] = 1


class Source:
    """One file's compressed bytes, and what was decoded of them: small once, in full once."""

    def __init__(self, shrinking: Shrinking, parts: dict[str, Any], data: bytes) -> None:
        self.shrinking, self._parts, self._data = shrinking, parts, data
        self.lock = threading.RLock()
        self.owners: list[weakref.ref[Any]] = []
        """Images that will need their pixels from this one."""
        self._full: Any = None
        self._small: Any = None
        self._scale = 0

    def full(self) -> Any:
        """The file's own image, decoded as the program would have."""
        with self.lock:
            if self._full is None:
                self._full = self._decoded(1)
                self._small = None
            return self._full

    def part(self, region: tuple[int, ...], owner: Any = None) -> Any:
        """A plain image of this region; the last owner gets the memory itself, not a copy."""
        full = self.full()
        if owner is None or region != (0, 0, *full.size) or not self._owned_by(owner):
            return self.shrinking.plain.crop(full, region)
        self._full = None
        return full._new(full.im)

    def whole(self, owner: Any) -> Any:
        """The pixels for the file's own image."""
        return self.part((0, 0, *owner.size), owner).im

    def _owned_by(self, owner: Any) -> bool:
        return all(image is None or image is owner for image in (ref() for ref in self.owners))

    def at(self, scale: int) -> tuple[Any, int]:
        """A decoding that is at least as large as 1/scale, and its scale.

        Images that are cropped again and again need several: the second is the full one.
        """
        with self.lock:
            if self._full is None and self._small is None:
                small = self._decoded(scale)
                self._small, self._scale = small, int(small.decoderconfig[0])
            if self._small is not None and self._scale <= scale:
                return self._small, self._scale
            return self.full(), 1

    def _decoded(self, scale: int) -> Any:
        image = self.shrinking.files.__new__(self.shrinking.files)
        parts = vars(image)
        parts.update(self._parts, fp=io.BytesIO(self._data), _exclusive_fp=True)
        parts["tile"] = list(self._parts["tile"])
        if scale > 1:
            image.draft(None, tuple(length // scale for length in image.size))
        image.load()
        return image


def _undecoded(plain: Any, methods: dict[str, Callable[..., Any]]) -> type:
    """The class of images without pixels; they turn into plain ones.

    It bears the name of the plain class, which is what code that asks for it expects.
    """

    def decode(image: Any) -> None:
        parts = object.__getattribute__(image, "__dict__")
        source = parts.get("_source")
        if source is None:
            return
        with source.lock:
            if "_source" in parts:
                pixels = vars(source.part(parts["_region"], image))
                parts.update(pixels, info=parts["info"])
                del parts["_source"], parts["_region"]
                object.__setattr__(image, "__class__", plain)

    def __getattribute__(image: Any, name: str) -> Any:  # noqa: N807
        if name == "__class__":
            return plain
        if name not in KNOWN:
            decode(image)
        return object.__getattribute__(image, name)

    def __setattr__(image: Any, name: str, value: Any) -> None:  # noqa: N807
        decode(image)
        object.__setattr__(image, name, value)

    def __delattr__(image: Any, name: str) -> None:  # noqa: N807
        decode(image)
        object.__delattr__(image, name)

    members = {"__getattribute__": __getattribute__, "__setattr__": __setattr__}
    members |= {"__delattr__": __delattr__, "__hash__": plain.__hash__, **methods}
    return type(plain.__name__, (plain,), {**members, "__module__": plain.__module__})


def _methods(
    plain: Any, late: Callable[[Any], Any], shrink: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """Methods of a class of images; `late`: the image without pixels in place of this one."""

    @functools.wraps(plain.convert)
    def convert(image: Any, mode: Any = None, *args: Any, **options: Any) -> Any:
        result = None
        if (mode is None or mode == "RGB") and not args and not options:
            result = _part(late(image), (0, 0, *image.size))
        return plain.convert(image, mode, *args, **options) if result is None else result

    @functools.wraps(plain.crop)
    def crop(image: Any, box: Any = None) -> Any:
        result = _part(late(image), box)
        return plain.crop(image, box) if result is None else result

    @functools.wraps(plain.resize)
    def resize(
        image: Any, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None
    ) -> Any:
        result = None
        try:
            result = shrink(late(image), size, resample, box, reducing_gap)
        except Exception:
            result = None  # what is wrong with the file or the call is raised in the program's way
        return plain.resize(image, size, resample, box, reducing_gap) if result is None else result

    return {"convert": convert, "crop": crop, "resize": resize}


def _held(image: Any) -> tuple[Any, Any]:
    """The source of an image without pixels, and its region there."""
    parts = {} if image is None else object.__getattribute__(image, "__dict__")
    return parts.get("_source"), parts.get("_region")


def _part(image: Any, box: Any) -> Any:
    """A region of an image without pixels, without pixels; None: the plain way."""
    source, region = _held(image)
    if source is None or not isinstance(box, tuple | list) or len(box) != 4:
        return None
    try:
        left, top, right, bottom = (round(number) for number in box)
        wide, high = image.size
        most = source.shrinking.pillow.MAX_IMAGE_PIXELS
        inside = 0 <= left < right <= wide and 0 <= top < bottom <= high
        if not inside or (most is not None and (right - left) * (bottom - top) > most):
            return None
        x, y = region[:2]
        return source.shrinking.image(source, (left + x, top + y, right + x, bottom + y), image)
    except Exception:
        return None


def _resized(plain: Any, small: Any, part: Any, size_and_filter: Any, gap: Any) -> Any:
    """`part` of the small image, resized; pixels that are wholly outside have no influence."""
    right, bottom = small.size
    outer = (
        math.floor(part[0]),
        math.floor(part[1]),
        min(right, math.ceil(part[2])),
        min(bottom, math.ceil(part[3])),
    )
    inner = (part[0] - outer[0], part[1] - outer[1], part[2] - outer[0], part[3] - outer[1])
    if outer == (0, 0, right, bottom):
        return plain.resize(small, *size_and_filter, inner, gap)
    return plain.crop(small, outer).resize(*size_and_filter, inner, gap)


def difference(first: Any, second: Any) -> float:
    """The mean absolute difference of two images as a share of the range of a colour."""
    chops = importlib.import_module("PIL.ImageChops")
    counts = chops.difference(first, second).histogram()
    total = sum(place % 256 * count for place, count in enumerate(counts))
    return float(total / sum(counts) / 255)
