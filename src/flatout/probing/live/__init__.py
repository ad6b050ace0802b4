"""The machine and its devices, sampled once a second at little cost: one file per source."""
