"""Hypothesis strategies: any Tuned that the types allow, however odd."""

from hypothesis import strategies as st

from flatout.nouns.plan import Plan, PlannedBoost
from flatout.nouns.trial import Trial
from flatout.nouns.tuned import Tuned

PARAMS = st.dictionaries(
    st.text(max_size=5),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    max_size=2,
)
NAMES = st.one_of(st.sampled_from(["compile", "tf32"]), st.text(max_size=8))
TRIALS = st.builds(Trial, tried=st.none() | NAMES, params=PARAMS)
PLANS = st.builds(
    Plan,
    boosts=st.lists(st.builds(PlannedBoost, id=NAMES, params=PARAMS), max_size=3).map(tuple),
)
TUNED = st.builds(Tuned, trials=st.lists(TRIALS, max_size=3).map(tuple), plan=st.none() | PLANS)
