"""What the model test of gates draws from: few gates and orders, so that many meet at them."""

import datetime as dt

from hypothesis import strategies as st

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.intent import KeepTimer, Released, SetTimer
from tests.support.models.gates.model import STARVATION_TIMEOUT
from tests.support.models.strategies import AFTER, BUSY, ENDING, LASTING, REFUSED, WHICH
from tests.support.storage.store import BROKEN, UNREACHABLE, success

IDS = st.sampled_from(["a", "b", "c", "d"])
STARTS = st.sampled_from(["a", "b", "e", "f"])
GATES = st.sampled_from(["x", "y", "z"])
CAPACITIES = st.sampled_from([1, 1, 2])
SET_CAPACITIES = st.sampled_from([0, 1, 1, 2, 3])
ORDERS = st.builds(
    Order, st.just("o"), st.sampled_from(["1", "1.9", "1.10", "2"]).map(Version.parse)
)
WANTED = st.sampled_from(["x", "y", "z", "xy", "xz", "yz", "xyz", "xyz", ""]).flatmap(
    lambda gates: st.fixed_dictionaries(dict.fromkeys(gates, st.none() | CAPACITIES))
)
CONSTRAINTS = st.builds(
    Constraints,
    order=st.one_of(st.none(), st.none(), ORDERS),
    gates=WANTED,
    priority=st.sampled_from([3, 3, 1, 5]),
    hold=st.sampled_from([GateHold.TASK] * 7 + [GateHold.PROCESS]),
)
CALLS = st.lists(st.tuples(IDS, CONSTRAINTS), min_size=1, max_size=4)
CROWDS = st.tuples(*[CONSTRAINTS] * 4)
SOON = st.sampled_from([dt.timedelta(), dt.timedelta(seconds=2)])
PAUSES = st.sampled_from([dt.timedelta(seconds=1), dt.timedelta(seconds=6), STARVATION_TIMEOUT])
TIMERS = st.builds(SetTimer, after=AFTER, constraints=CONSTRAINTS)
SUCCESSES = st.builds(
    success,
    st.one_of(*[st.just(KeepTimer())] * 6, TIMERS, TIMERS, LASTING, ENDING),
)
WORK = st.lists(st.tuples(WHICH, SUCCESSES), min_size=1, max_size=3)
# What leaves nothing for others to do is rare.
FAILURES = st.sampled_from([UNREACHABLE] * 3 + [BUSY] * 2 + [REFUSED, Released(), BROKEN])
