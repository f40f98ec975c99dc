"""The history cache: histories that need not be read again."""

from progressor.runtime.step.history_cache import HistoryCache
from tests.support.builders import make_event, make_history, make_key, make_process

AT_3 = make_process(last_event_id=3)
EVENT_BYTES = 400


def remembering(last: int = 3, *, first: int = 1) -> HistoryCache:
    history_cache = HistoryCache(bytes_max=10_000)
    history_cache.remember(make_process(last_event_id=last), make_history(last, first=first))
    return history_cache


def test_nothing_comes_after_the_end() -> None:
    assert HistoryCache(bytes_max=0).recall(AT_3, after=3) == ()


def test_another_process_under_the_same_id_is_not_recalled() -> None:
    assert remembering().recall(make_process(last_event_id=3, init_task_id=99), after=0) is None


def test_the_events_of_a_removed_process_are_not_those_of_its_successor() -> None:
    history_cache = remembering(first=2)
    before = make_process(last_event_id=3, init_task_id=99)
    after = make_process(last_event_id=4, init_task_id=99)

    history_cache.extend(before, after, (make_event(4),), keep=None)

    assert history_cache.recall(after, after=2) is None


def test_events_that_others_have_followed_are_not_the_end_of_the_history() -> None:
    history_cache = remembering()
    gone_on = make_process(last_event_id=6)

    history_cache.extend(AT_3, gone_on, (make_event(4),), keep=None)

    assert history_cache.recall(gone_on, after=0) is None


def test_no_more_is_kept_than_will_be_asked_for_and_as_much_again() -> None:
    history_cache = HistoryCache(bytes_max=1_000_000)
    process = make_process()

    for last in range(1, 200):
        after = make_process(last_event_id=last)
        history_cache.extend(process, after, (make_event(last),), keep=10)
        process = after

    assert history_cache.recall(process, after=189) == make_history(199, first=190)
    assert history_cache.recall(process, after=150) is None


def test_the_least_recently_used_goes_first() -> None:
    history_cache = HistoryCache(bytes_max=2 * EVENT_BYTES)
    first, second, third = (make_process(key=make_key(name), last_event_id=1) for name in "abc")
    for process in (first, second):
        history_cache.remember(process, (make_event(payload=b"x" * 100),))
    history_cache.recall(first, after=0)

    history_cache.remember(third, (make_event(payload=b"x" * 100),))

    known = [history_cache.recall(each, after=0) is not None for each in (first, second, third)]
    assert known == [True, False, True]


def test_a_history_larger_than_the_cache_is_not_cached() -> None:
    history_cache = HistoryCache(bytes_max=EVENT_BYTES)

    history_cache.remember(make_process(last_event_id=1), (make_event(payload=b"x" * EVENT_BYTES),))

    assert history_cache.recall(make_process(last_event_id=1), after=0) is None
