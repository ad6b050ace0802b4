"""A dense matrix product multiplies almost only zeros.

## What it sees

In one step, a large factor of matrix products of whose numbers at least 95% are zeros, at least
64 x 64, that is neither a weight nor computed from one: a one-hot matrix times a table, the dense
adjacency matrix of a graph times features, a bag of words times a weight. Masks of dropout, and
activations (the zeros of a ReLU come and go), do not count.

## Why it matters

A dense product takes the same time whatever the numbers are. A one-hot matrix of 1,500 classes
times a table reads 1,500 rows of it to copy one; its backward pass does so again, and the matrix
itself is built and kept in each step.

## Evidence

The matrix with its share of zeros, the line that builds it, and the products with their time.

## Cure

One-hot: index the table: `nn.Embedding`, `F.embedding` or `table[index]`; transposed, where it adds
rows up: `index_add_` or `scatter_add_`. Bags of words: `F.embedding_bag` on the indices.
Adjacency: `torch.sparse_csr_tensor` once, before the loop, and `torch.sparse.mm`, or a sum over the
edges: `out.index_add_(0, target, weight[:, None] * h[source])`. Sparse products reach about a tenth
of a dense one's rate on CPUs, less on GPUs: they are told from 98% zeros on (GPU: 99%). The gain:
the time of the products, with their backward pass, less ten times (sparse on GPUs: fifty times) the
share that is not zero, and less a tenth for sparse ones.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html
- https://docs.pytorch.org/docs/stable/sparse.html
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_add_.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.diagnosing.job.kern import values
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import ZerosSeen

CHECK = Check(code="KERN021", severity=Severity.WARNING, since="0.3.0")
LEAST = 0.04
"""Share of the step in these products below which nothing is told."""
DEAR, DEAR_ON_DEVICE = 10.0, 50.0
"""How many times as long as in a dense product a number takes that is not zero."""
ALWAYS = 0.1
"""Of a dense product's time, what a sparse one takes besides."""
FULLEST, FULLEST_ON_DEVICE = 0.02, 0.01
"""Share of numbers that are not zero above which a sparse product is not believed to pay."""
ONE_HOT = ("select", "add")
CURES = {
    "select": (
        "Index the rows instead: an embedding lookup reads only the row that is wanted.",
        ("y = F.embedding(index, table)  # nn.Embedding; of a Linear the table is weight.t()",),
    ),
    "add": (
        "Add the rows up by their index: no product is needed.",
        ("sums = torch.zeros(groups, x.shape[1]).index_add_(0, index, x)",),
    ),
    "scaled": (
        "Index the rows, and multiply each by its number: no product is needed.",
        ("y = factor[:, None] * x[index]",),
    ),
    "bag": (
        "Keep the indices of the numbers that are not zero, and look their rows up.",
        ("y = F.embedding_bag(indices, table, offsets, mode='sum')",),
    ),
    "sparse": (
        "Keep the matrix sparse, built once before the loop (or index_add over its entries).",
        ("matrix = matrix.to_sparse_csr()  # once", "y = torch.sparse.mm(matrix, x)"),
    ),
}


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that multiplies by such a matrix."""
    seen = flow.of(profile)
    for row in seen.zeros if seen is not None else ():
        assert seen is not None
        took = values.ms(profile, seen, row.s, row.flops)
        if took < LEAST * profile.anatomy.step_ms or not _pays(profile, row):
            continue
        left = _left(profile, row)
        built = 0.0 if savings.accelerated(profile) else values.ms(profile, seen, row.built_s, 0.0)
        saved = took * (1 - left) + (built if row.kind in ONE_HOT else 0.0)
        saving = device_time.of_device(profile, saved, _reason(row, took, left, built))
        if saving.worth:
            yield Diagnosis(
                title=_title(row, took),
                evidence=_evidence(row, took, built),
                cure=_cure(profile, row),
                severity=saving.severity,
                where=row.where,
                saves_ms=saving.ms,
                reason=saving.reason,
                most_ms=took + built,
            )


def _pays(profile: Profile, row: ZerosSeen) -> bool:
    fullest = FULLEST_ON_DEVICE if savings.accelerated(profile) else FULLEST
    return row.kind != "sparse" or row.density <= fullest


def _left(profile: Profile, row: ZerosSeen) -> float:
    """Share of the products' time."""
    if row.kind != "sparse":
        return min(row.density * DEAR, 1.0)
    dear = DEAR_ON_DEVICE if savings.accelerated(profile) else DEAR
    return min(ALWAYS + row.density * dear, 1.0)


def _title(row: ZerosSeen, took: float) -> str:
    kind = "one-hot" if row.kind in ONE_HOT else "dense"
    return (
        f"products with a {kind} matrix of {row.shape}, {_zeros(row)} zeros, "
        f"take {units.milliseconds(took)}"
    )


def _zeros(row: ZerosSeen) -> str:
    """As in 99.93%: never 100%."""
    share = 100 * (1 - row.density)
    return f"{share:.{1 if share < 99.9 else 2 if share < 99.99 else 3}f}%"


def _evidence(row: ZerosSeen, took: float, built: float) -> str:
    parts = [
        f"{row.shape}, {_zeros(row)} zeros, in {row.calls:.3g} products of a step with those of "
        f"the backward pass: {units.milliseconds(took)}"
    ]
    if row.kind in ONE_HOT:
        parts.append(f"each {'row' if row.kind == 'select' else 'index'} holds a single 1")
    if row.built_where is not None:
        cost = f" ({units.milliseconds(built)})" if built > 0 else ""
        parts.append(f"built on {row.built_where}{cost}")
    if row.table:
        parts.append("the other factor is a weight")
    return "; ".join(parts)


def _reason(row: ZerosSeen, took: float, left: float, built: float) -> str:
    words = (
        f"the products take {units.milliseconds(took)}, of which {units.share(left)} is taken to "
        "be left (a cautious constant by the share of numbers that are not zero)"
    )
    if row.kind in ONE_HOT and built > 0:
        words += f"; building the matrix takes {units.milliseconds(built)}"
    return words


def _cure(profile: Profile, row: ZerosSeen) -> Cure:
    kind = "bag" if row.kind == "sparse" and row.table else row.kind
    words, after = CURES.get(kind, CURES["sparse"])
    return Cure(words, savings.lines(row.where, flow.line_source(profile, row.where), *after))
