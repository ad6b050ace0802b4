"""Live tuning: boosts are switched between the steps of one running program, and compared.

One decision, from its start to its end: `run` hands the program's steps to the story in `recipe`,
`checks` lets the Guard repeat recorded calls both ways, `measure` takes pairs of neighbouring
blocks of steps, and `decide` says what they show. What is kept is written in `state` alone.
"""
