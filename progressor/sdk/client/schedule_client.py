"""``client.schedules``: the requests about schedules, sent by either client.

::

    at_night = Cron("30 2 * * *", "Europe/Berlin")
    nightly = ScheduleSpec(times=at_night, target=ScheduledStart("sales"))
    await client.schedules.create("nightly", nightly)
    firing = await client.schedules.trigger("nightly")
"""

from progressor.sdk.client.schedule_calls import ScheduleCalls
from progressor.sdk.sending.connection import BlockingConnection, Connection
from progressor.sdk.sending.sending import blocking_iterated, blocking_sent, iterated, sent


class Schedules:
    """What a program asks of its schedules; see `ScheduleCalls` for each method's arguments."""

    def __init__(self, calls: ScheduleCalls, connection: Connection) -> None:
        self.calls, self.connection = calls, connection

    create = sent(ScheduleCalls.create)
    update = sent(ScheduleCalls.update)
    get = sent(ScheduleCalls.get)
    list = iterated(ScheduleCalls.list)
    delete = sent(ScheduleCalls.delete)
    pause = sent(ScheduleCalls.pause)
    resume = sent(ScheduleCalls.resume)
    trigger = sent(ScheduleCalls.trigger)
    backfill = sent(ScheduleCalls.backfill)


class SyncSchedules:
    """`Schedules` for programs without an event loop: blocking, and safe in any thread."""

    def __init__(self, calls: ScheduleCalls, connection: BlockingConnection) -> None:
        self.calls, self.connection = calls, connection

    create = blocking_sent(ScheduleCalls.create)
    update = blocking_sent(ScheduleCalls.update)
    get = blocking_sent(ScheduleCalls.get)
    list = blocking_iterated(ScheduleCalls.list)
    delete = blocking_sent(ScheduleCalls.delete)
    pause = blocking_sent(ScheduleCalls.pause)
    resume = blocking_sent(ScheduleCalls.resume)
    trigger = blocking_sent(ScheduleCalls.trigger)
    backfill = blocking_sent(ScheduleCalls.backfill)
