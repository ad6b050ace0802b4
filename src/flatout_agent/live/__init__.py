"""Live tuning: boosts are switched between the steps of one running program, and compared.

`session` tells the story; `blocks` measures pairs of neighbouring blocks, `paired` decides on them,
`guard` repeats recorded calls both ways, `switches` puts boosts on and takes them off.
"""
