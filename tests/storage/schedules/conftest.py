"""The schedules of one or two replicas."""

import pytest

from tests.support.storage.schedules import ScheduleStore, schedule_store
from tests.support.storage.store import Store


@pytest.fixture
def timetable(store: Store) -> ScheduleStore:
    return schedule_store(store)


@pytest.fixture
def rival(other: Store) -> ScheduleStore:
    return schedule_store(other)
