"""Decode JPEG files at 1/2, 1/4 or 1/8 of their size where the program shrinks them at once.

## What it does
An RGB image that was opened with Pillow stays undecoded through `convert("RGB")` and `crop`. If the
program then calls `resize` and the decoded image can be `margin` times as large as the result at
1/2, 1/4 or 1/8 of its size, it is decoded at that size (Pillow's `Image.draft`) and resized from
there, from exactly the same part. Asked for anything else (its pixels, an array, another method) it
is decoded in full: the bits are those of the program as written. Forked loader workers get it as
well.

## Why it is faster
Of a block of 8 x 8 frequencies only the lowest are transformed, and there is less to convert and
to resize. Only reading the compressed numbers takes as long as before. Measured on one core with
Pillow 13 and a DataLoader without workers, in turns: a sample of 2000 x 1500 pixels took 0.4 of the
time with random resized crops to 224 x 224 and 0.2 to 64 x 64; of 500 x 375 pixels 0.7 for a plain
resize to 64 x 64, 0.9 with random resized crops. Where nothing is shrunk far enough (500 x 375 to
224) it cost 5 %.

## When it does nothing
- The image (or the part that is cropped out of it) is less than 2 x `margin` times as large as the
  result: most crops of a data set of 500 x 375 pixels to 224.
- Between opening and shrinking the image is flipped, turned, padded or filtered, or is looked at.
- Files that are not whole baseline RGB images: progressive, gray, CMYK, several images in a file,
  truncated or with bytes after the end; file objects other than Python's own; the filters
  `NEAREST` and `BOX`.
- Images read by `torchvision.io`, OpenCV and other libraries; Pillow before 10.1.
- Loader workers that are spawned; persistent workers that were started without it.

## What it may change
Shrinking by the transform averages a little differently. Over random crops of photographs the
result is off by 0.1 to 0.2 % of the colour range on average, at most 0.6 %, with `margin` 2, and
0.2 to 0.3 %, at most 0.7 %, with 1.5; one step of an 8-bit number is 0.4 %. With strong noise it is
twice as much. The first 8 images and one in 101 are decoded both ways and compared: where the mean
is above 1 %, or one image is above 3 %, it switches itself off for good. A file whose tables are
broken raises its error when its pixels are needed, not in `convert`. While an image is undecoded
`type(image)` is a subclass of `PIL.Image.Image`. A program that opens all of its images before it
starts workers has each of them decode the images anew.

## How it is undone
The methods of Pillow's class for JPEG files are put back, and workers are started anew. Images that
are still undecoded are decoded in full when they are needed.

## References
- https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.draft
- https://libjpeg-turbo.org/About/SmartScale
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch
from flatout_agent.boosts import speedup_of_wait
from flatout_agent.speedups.images import jpeg_loading
from flatout_agent.speedups.images.lazy_jpeg import OFF, SCALED, Shrinking

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.ROUNDING,
    moment=Moment.LOADER,
    switch=Switch.ITERATOR,
    params={"margin": (2.0, 1.5)},
    covered_by=("sample-cache",),
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why no loader of this job can gain from it; None: at least one may."""
    return jpeg_loading.why_no_loader(facts)


def promise(facts: JobFacts, params: Params) -> float:
    """A third of the wait, where the images are large; that cannot be known beforehand."""
    return speedup_of_wait(facts, 1.5)


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Let this loader's images be decoded small, those of workers to come included."""
    reason = jpeg_loading.why_not(target)
    if reason is not None:
        raise Declined(reason)
    shrinking = _shrinking(jpeg_loading.jpeg_plugin(target))
    before = shrinking.numbers[SCALED]
    if shrinking.numbers[OFF]:
        raise Declined(shrinking.engagement(before)[1])
    shrinking.hold(float(params.get("margin", 2.0)))
    undo_workers = jpeg_loading.with_fresh_workers(target)

    def undo() -> None:
        shrinking.let_go()
        undo_workers()

    return Applied(undo, lambda: shrinking.engagement(before))


def by_hand(facts: JobFacts, params: Params) -> str:
    """Pillow's draft, called right after opening."""
    margin = float(params.get("margin", 2.0))
    return "\n".join(
        [
            "# where the dataset opens the file; SIZE: what it will be resized to",
            "image = Image.open(path)",
            f'image.draft("RGB", ({margin:g} * SIZE, {margin:g} * SIZE))  # before convert',
            'image = image.convert("RGB")',
            "# random crops: draft to the size at which the crop is still larger than SIZE",
        ]
    )


_known: list[Shrinking] = []
"""That of this process: what its checks found holds as long as the program runs."""


def _shrinking(plugin: Any) -> Shrinking:
    if not _known:
        _known.append(Shrinking(plugin))
    return _known[0]
