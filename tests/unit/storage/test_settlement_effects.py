"""The effects of a batch of settlements, by answers of PostgreSQL that are made here."""

import datetime as dt
from typing import Any
from unittest import mock

from progressor.clock import SystemClock
from progressor.domain.processes.process import process_key
from progressor.domain.processes.settlement import Fail
from progressor.domain.processes.task import TaskError, TaskType
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import CommitContext
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Functions
from progressor.storage.processes.settlements import Entry, LeaseLost, Settlements


async def test_effects_of_a_batch_whose_leases_are_all_lost_are_left_to_the_scans() -> None:
    """A gated process that was removed meanwhile may leave a locked order to be looked at again."""
    pool: Any = mock.Mock()
    context = StorageContext(
        pool=pool,
        functions=Functions(),
        clock=SystemClock(),
        replica_id=1,
        statement_timeout=dt.timedelta(seconds=1),
    )
    settlements = Settlements(
        context, settings=Commit(), commit=CommitContext(), step_grace=dt.timedelta()
    )
    entry = Entry(
        key=process_key("shop", "order-1"),
        task_id=1,
        task_type=TaskType.CALL,
        attempt=1,
        token=1,
        settlement=Fail(TaskError(code=9, reason="BROKEN", message="")),
        process=None,
        continues=False,
        expires_after=dt.timedelta(seconds=1),
        is_gated=True,
    )
    again = ["shop", None, None, None, None, "order"]
    answer = mock.Mock(started=None, item=None, job_effects=None, effects=[again])
    function = settlements._settle_tasks

    with mock.patch.object(function, "execute", mock.AsyncMock(return_value=[answer])):
        outcomes = await settlements._write(function, mock.Mock(), [entry], again=False)

    assert outcomes == [LeaseLost()]
