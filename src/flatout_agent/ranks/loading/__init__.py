"""Ranks share the loading: each reads its own rows of a batch, and all get the whole batch.

For a `DataLoader` over a map-style dataset. What goes to the dataset, in this process
or in a worker, is a `Task` in place of a list of indices (`tasks`): this rank's part of it, once
the loader's first batches have shown that the parts put together are the batch (`proof`, `forms`)
and that reading takes longer than the exchange (`plans`). What comes back is joined (`joining`)
where the program asks for its next batch (`sharing`): what each rank has collated of its rows, or,
where a collate function needs all of them, the samples (`packing`).

Random numbers that a dataset draws for its rows are this rank's own; all streams of the program
go on as if none had been drawn (`streams`), in all ranks alike. So a loader can be read whole by
every rank again, from any batch on: where a part cannot be read or does not fit, and now and then
to look whether the proof still holds.
"""
