"""Who shares a channel, whose turn it is, and when one is closed."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest_asyncio

from progressor.domain.processes.namespace import Namespace
from progressor.processor.channels import Channels, Connection
from tests.support.processor.scripted import ScriptedProcessor

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


@pytest_asyncio.fixture
async def channels() -> AsyncIterator[Channels]:
    channels = Channels()
    yield channels
    await channels.close()


@pytest_asyncio.fixture
async def carried(channels: Channels) -> AsyncIterator[Channels]:
    """Return channels that run."""
    running = asyncio.ensure_future(channels.run())
    await asyncio.sleep(0)
    yield channels
    await channels.close()
    await running


def namespace(*targets: str, name: str = "orders") -> Namespace:
    return Namespace(name=name, processor_targets=targets)


async def targets_of(channels: Channels, asked: Namespace, count: int) -> list[str]:
    targets = []
    for _ in range(count):
        connection = await channels.take(asked)
        targets.append(connection.target)
        await channels.give_back(connection)
    return targets


async def closed(connection: Connection) -> None:
    """Wait until a channel is closed."""
    async with asyncio.timeout(10):
        while (state := connection.channel.get_state()) is not grpc.ChannelConnectivity.SHUTDOWN:
            await connection.channel.wait_for_state_change(state)


async def others_had_their_turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_targets_are_taken_in_turn(channels: Channels) -> None:
    assert await targets_of(channels, namespace(A, B, C), 5) == [A, B, C, A, B]


async def test_streams_are_counted_while_they_are_open(channels: Channels) -> None:
    first, second = await channels.take(namespace(A)), await channels.take(namespace(B))
    async with asyncio.TaskGroup() as group:
        counts = [channels.stream_count]
        for connection in (first, second, second):
            connection.stream(group)
            counts.append(channels.stream_count)
        await channels.close()

    assert counts == [0, 1, 2, 2]
    assert channels.stream_count == 0


async def test_new_targets_count_from_the_next_call(channels: Channels) -> None:
    await targets_of(channels, namespace(A, B), 1)

    assert await targets_of(channels, namespace(B, C), 3) == [B, C, B]


async def test_a_channel_is_closed_after_its_last_call(channels: Channels) -> None:
    first, second = await channels.take(namespace(A)), await channels.take(namespace(A))

    await channels.take(namespace(B))
    await channels.give_back(first)

    assert first.channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN
    await channels.give_back(second)
    assert first.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_a_channel_stays_while_another_namespace_names_it(carried: Channels) -> None:
    shared = await carried.take(namespace(A))
    await carried.give_back(shared)
    await targets_of(carried, namespace(A, name="payments"), 1)

    carried.forget("orders")
    await others_had_their_turn()

    assert shared.channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN
    carried.forget("payments")
    await closed(shared)


async def test_a_target_named_twice_is_one_channel_and_closed_once(carried: Channels) -> None:
    connection = await carried.take(namespace(A, A))
    await carried.give_back(connection)

    carried.forget("orders")
    carried.forget("orders")

    await closed(connection)


async def test_what_is_forgotten_before_the_channels_run_is_closed_with_the_others() -> None:
    channels = Channels()
    connection = await channels.take(namespace(A))
    await channels.give_back(connection)

    channels.forget("orders")
    await channels.close()

    assert connection.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_where_all_targets_fail_they_are_still_taken_in_turn(channels: Channels) -> None:
    asked = namespace(A, B)
    for _ in range(2):
        await _fail((await channels.take(asked)).channel)

    assert sorted(await targets_of(channels, asked, 2)) == [A, B]


async def test_a_connection_that_was_lost_is_known_to_be_when_it_is_back(carried: Channels) -> None:
    back = asyncio.Event()
    carried.on_connected = lambda _name: back.set()
    async with ScriptedProcessor() as processor:
        connection = await carried.take(namespace(processor.target))
        assert await connection.connect(10) is None
        losses = connection.losses
        kept = await connection.has_lost(losses)

        back.clear()
        processor.relay.cut()
        async with asyncio.timeout(10):
            await back.wait()

        assert not kept
        assert connection.is_connected
        assert await connection.has_lost(losses)
        assert not await connection.has_lost(connection.losses)
        await carried.give_back(connection)


async def test_close_closes_every_channel(channels: Channels) -> None:
    taken = [await channels.take(namespace(A, B)) for _ in range(2)]

    await channels.close()

    for connection in taken:
        assert connection.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_there_are_streams_only_while_they_are_carried(channels: Channels) -> None:
    connection = await channels.take(namespace(A))
    assert channels.stream_of(connection) is None
    async with asyncio.TaskGroup() as group:
        group.create_task(channels.run())
        await asyncio.sleep(0)
        stream = channels.stream_of(connection)

        assert stream is not None
        assert channels.stream_of(connection) is stream
        await channels.close()
        assert channels.stream_of(connection) is None
    assert stream.has_ended


async def test_the_stream_of_a_channel_that_nobody_names_is_closed_with_it(
    channels: Channels,
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(channels.run())
        await asyncio.sleep(0)
        old = await channels.take(namespace(A))
        stream = channels.stream_of(old)
        await channels.take(namespace(B))
        assert stream is not None
        assert stream.is_open

        await channels.give_back(old)

        assert not stream.is_open
        await channels.close()


async def _fail(channel: grpc.aio.Channel) -> None:
    """Have the channel learn that nothing listens at its target."""
    async with asyncio.timeout(5):
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
