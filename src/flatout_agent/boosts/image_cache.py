"""Keep decoded JPEG files in memory, for all loader workers together.

## What it does
Keeps the pixels of each JPEG file that the program opens with Pillow, keyed by the file's path,
inode number, size and timestamps, or by its bytes if it is read from memory (`io.BytesIO`, as from
a table or an archive). When the same file is opened again, its header is read and its pixels
come from memory. If the program resizes the image before it does anything else with it, to one of
at most four sizes, the result is kept as well. Random crops, flips and everything else that the
program does afterwards stay its own. The memory is shared with workers that are forked: each file
is decoded once, by whichever worker reaches it first.

## Why it is faster
Decoding is most of what loading an image takes, and with random augmentation the samples differ
while the files stay the same. Measured on one core with Pillow 13, alternating with the original:
opening a photograph of 500 x 375 or 2000 x 1500 pixels and `convert("RGB")` took 0.1 to 0.2 of the
time, a whole sample of a DataLoader with a random resized crop to 224 x 224 0.4 to 0.6. Opening one
of 640 x 427 and resizing it to 64 x 64 took 0.16 of the time. Nothing is
gained in the first epoch, and a program that sees each file once gets a little slower; that cannot
be known beforehand.

## When it does nothing
- Memory: pixels take 5 to 20 times as much as the file. It takes up to a quarter of the free
  memory, within the control group's limit; after that nothing is added, and cached images stay.
- Files that changed within the last 2 seconds; file objects other than Python's own `open` and
  `io.BytesIO`; gray and RGB only; images that Pillow is to decode small (`draft`, `thumbnail`).
- Resized images that are larger than the file's, or of a program that draws their size at random.
- Images read by `torchvision.io`, OpenCV and other libraries; Pillow before 10.1.
- Loader workers that are spawned; persistent workers that were started without it; systems other
  than Linux.

## What it may change
Nothing: the pixels are the same bits. A rewritten file has another identity. A program that
rewrites a file in place and forges both of its timestamps would get the old pixels; one in 61
images from memory is decoded as well, and if it differs the boost is switched off for good.

## How it is undone
The method of Pillow's class for JPEG files is put back, and workers are started anew. While tuning
switches it off and on, the pixels stay; they are dropped when tuning decides against it or the
program ends, however it ends: the memory has no name and belongs to its processes.

## References
- https://man7.org/linux/man-pages/man2/memfd_create.2.html
- https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch
from flatout_agent.boosts import speedup_of_loading, why_no_cache
from flatout_agent.limits import CACHE_SHARE, spare_memory
from flatout_agent.speedups.images import jpeg_loading
from flatout_agent.speedups.images.decoded_images import Decoded
from flatout_agent.speedups.shared_log import HITS, OFF, Readiness, made
from flatout_agent.speedups.workers.fresh_workers import SPAWNED, with_fresh_workers

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, LoaderFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.EXACT,
    moment=Moment.LOADER,
    switch=Switch.ITERATOR,
    fills=True,
    covered_by=("sample-cache",),
)
LEAST_ROOM = 64 << 20


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why no loader of this job can gain from it, or None if at least one may."""
    if facts.system != "linux":
        return "only Linux has memory that workers share without leaving anything behind"
    return why_no_cache(facts, _why_not)


def _why_not(loader: LoaderFacts) -> str | None:
    if loader.dataset == "TensorDataset":
        return "the samples are in memory already"
    return SPAWNED if loader.num_workers and loader.start_method != "fork" else None


def promise(facts: JobFacts, params: Params) -> float:
    """Less than half of loading: nothing is gained in the first epoch, and augmentation stays."""
    return speedup_of_loading(facts, 1.9)


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Cache this loader's decoded images, also in later workers."""
    reason = jpeg_loading.why_not(target)
    if reason is not None:
        raise Declined(reason)
    decoded = _decoded(jpeg_loading.jpeg_plugin(target))
    numbers = decoded.log.numbers
    before = numbers[HITS]
    if numbers[OFF]:
        raise Declined(decoded.engagement(before)[1])
    decoded.hold()
    undo_workers = with_fresh_workers(target)

    def undo() -> None:
        decoded.let_go()
        undo_workers()
        _drop_unwanted()

    ready = Readiness(job, target, decoded.log)
    return Applied(undo, lambda: decoded.engagement(before), ready.batches)


def forget(job: Job) -> None:
    """Release the pixels that outlasted `undo`."""
    for decoded in _known:
        decoded.lasting = False
    _drop_unwanted()


def by_hand(facts: JobFacts, params: Params) -> str:
    """The lines for a loader without workers; with workers the arrays would have to be in shared
    memory.
    """
    return "\n".join(
        [
            "@functools.lru_cache(maxsize=None)  # as many as there is memory for",
            "def opened(path):",
            "    with open(path, 'rb') as file:",
            "        return Image.open(file).convert('RGB')",
            "",
            "# in the dataset, before the random augmentation:",
            "image = opened(path).copy()",
        ]
    )


_known: list[Decoded] = []
"""The cache of this process, or none."""


def _decoded(plugin: Any) -> Decoded:
    if not _known:
        spare = spare_memory()
        if spare is None:
            raise Declined("the amount of free memory is unknown here")
        room = int(CACHE_SHARE * spare)
        if room < LEAST_ROOM:
            raise Declined(f"only {room / 1e6:.0f} MB may be taken")
        _known.append(Decoded(plugin, made(room)))
    _known[0].lasting = True
    return _known[0]


def _drop_unwanted() -> None:
    for decoded in list(_known):
        if not decoded.lasting and not decoded.holders:
            _known.remove(decoded)
            decoded.end()
