"""One program on several devices, without an edit: the part of each rank.

Every rank runs the whole script on the same data and random numbers. Only calls of models are cut:
a rank computes its own rows of the batch (`regions`), the rows are joined again (`rows`), so that
all ranks see the same outputs, and the gradients of the ranks are averaged (`reducer`). Calls that
cannot be cut are computed by every rank: slower, never wrong. Whether a model's call can be cut is
determined at its first call, by comparing the joined rows and their gradients with those of the
whole batch (`proving`).

Quantities inside a region (own rows, their gradients) are kept so that their mean over the ranks is
the true gradient: where rows are joined, the gradient that comes back is multiplied by the number
of ranks; where they are split, what goes out is divided by it.
"""
