"""What the model test draws from: often what keeps processes alive, rarely what ends them."""

import dataclasses
import datetime as dt

from hypothesis import strategies as st

from progressor.domain.processes.intent import (
    Complete,
    KeepTimer,
    Outcome,
    Rejected,
    RemoveProcess,
    SetTimer,
    Succeeded,
    UnsetTimer,
)
from progressor.domain.processes.message import Message, MessageKind
from tests.support.storage.store import BROKEN, UNREACHABLE, key_of, success

IDS = st.sampled_from(["a", "b", "c"])
KEYS = st.sampled_from([None, None, None, "k1", "k2"])
ARGS = st.sampled_from([b"", b"x"])
# Not sampled from what there is: which replica wins a race is not hypothesis's to know.
WHICH = st.integers(0, 9)
STORES = st.integers(0, 1)
LONGEST_TIMER = dt.timedelta(seconds=60)
AFTER = st.sampled_from([dt.timedelta()] * 2 + [dt.timedelta(seconds=2), LONGEST_TIMER])
RARELY = st.sampled_from([False, False, False, True])
MOSTLY = st.sampled_from([True, True, True, False])
LASTING = st.one_of(
    st.just(KeepTimer()),
    st.builds(SetTimer, after=AFTER, remove=RARELY),
)
ENDING = st.sampled_from([UnsetTimer(), Complete(b"end"), RemoveProcess()])
SUCCESSES = st.builds(
    success,
    st.one_of(LASTING, LASTING, LASTING, ENDING),
    events=st.integers(0, 2),
    response=st.sampled_from([b"", b"r"]),
    aux_state=st.sampled_from([None, b"", b"s"]),
    # Without an aux_state it is ignored.
    state_version=st.sampled_from([0, 0, 2]),
    timers=st.one_of(
        st.just({}),
        st.just({}),
        st.dictionaries(
            st.sampled_from(["a", "b"]),
            st.one_of(st.builds(SetTimer, after=AFTER, remove=RARELY), st.just(UnsetTimer())),
            max_size=2,
        ),
    ),
)
MESSAGES = st.builds(
    Message,
    kind=st.sampled_from([*MessageKind, MessageKind.CALL]),
    receiver=IDS.map(key_of),
    args=ARGS,
    reply=st.sampled_from([None, "r", "r"]),
)


def _sending(outcome: Succeeded, messages: list[Message]) -> Succeeded:
    return Succeeded(dataclasses.replace(outcome.intent, messages=tuple(messages)))


SENDING = st.builds(
    _sending,
    st.builds(success, st.sampled_from([None, None, Complete(b"end"), RemoveProcess()])),
    st.lists(MESSAGES, min_size=1, max_size=3),
)
REFUSED = Rejected(code=3, message="no", reason="BAD")
LONGEST_BACKOFF = dt.timedelta(seconds=20)
"""Longer than a lease lasts: a retry may still wait when all that was lost has been collected."""
BUSY = dataclasses.replace(UNREACHABLE, retry_after=LONGEST_BACKOFF)
PLAIN: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(
        lambda events, state: success(
            events=events, aux_state=state, state_version=0 if state is None else len(state)
        ),
        st.integers(0, 3),
        st.sampled_from([None, b"s", b"state"]),
    ),
    st.just(REFUSED),
)
"""Outcomes after which a turn goes on."""
FAILURES = st.sampled_from([UNREACHABLE, BUSY, BROKEN, REFUSED])
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(SUCCESSES, SUCCESSES, FAILURES)
PAUSES = st.sampled_from([0.5, 1, 2, 6, 40]).map(lambda seconds: dt.timedelta(seconds=seconds))
