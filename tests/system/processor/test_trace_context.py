"""Trace contexts over the wire: passed to the processor and onward, or left out."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest

from progressor.v1 import process_service_pb2 as messages
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Replica,
    answering,
    open_env,
    running_replica,
    timer,
    unavailable,
)
from tests.support.engine.sessions import RawSession
from tests.support.processor.scripted import Answer, ScriptedProcessor
from tests.support.telemetry.collector import running_collector
from tests.support.telemetry.spans import NOT_TRACED, SPAN_ID, TRACE_ID, TRACED

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATED: Mapping[str, str] = {"tracestate": "till=7,shop@east=a b"}
BAGGAGE: Mapping[str, str] = {"baggage": "tenant=acme,user=a%20b;hidden"}
BROKEN = (
    {"traceparent": "cut"},
    {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}"},
    {"traceparent": f"00-{TRACE_ID.upper()}-{SPAN_ID}-01"},
    {"traceparent": f"00-{'0' * 32}-{SPAN_ID}-01"},
    {"traceparent": f"00-{TRACE_ID}-{'0' * 16}-01"},
    {"traceparent": f"ff-{TRACE_ID}-{SPAN_ID}-01"},
    {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01-more"},
    {"tracestate": "till=7"},
)

Way = str


async def ask(replica: Replica, way: Way, call: messages.CallRequest, trace: Any) -> None:
    """Ask as a client in any language would, with a trace context of any kind."""
    async with grpc.aio.insecure_channel(replica.address) as channel:
        if way == "unary":
            stub: Any = ProcessServiceStub(channel)
            metadata = tuple(trace.items())
            await stub.Call(call, metadata=metadata, timeout=PATIENCE_SECONDS)
            return
        session = RawSession(channel)
        await session.send(messages.SessionCall(call_id=1, call=call, trace_context=trace))
        answer = (await session.answered())[1]
        assert answer.WhichOneof("result") == "call"
        await session.ended()


def contexts_of(processor: ScriptedProcessor) -> Sequence[Mapping[str, str]]:
    return [dict(request.task.trace_context) for request in processor.requests]


def told_in_metadata(processor: ScriptedProcessor) -> Sequence[Mapping[str, str | bytes]]:
    names = ("traceparent", "tracestate", "baggage")
    return [{name: each[name] for name in names if name in each} for each in processor.metadata]


@pytest.mark.parametrize("way", ["unary", "session"])
@pytest.mark.parametrize(
    "caller",
    [{**TRACED, **STATED}, {**NOT_TRACED, **STATED, **BAGGAGE}, NOT_TRACED, BAGGAGE],
    ids=str,
)
async def test_an_engine_that_traces_nothing_carries_a_context_on_as_it_came(
    replica: Replica, way: Way, caller: Mapping[str, str]
) -> None:
    async with open_env(replica, streaming=False, retry_policy=NOW_AND_THEN) as env:
        await env.running("p", answering(set_timer=timer()), unavailable(), answering())
        call = messages.CallRequest(namespace=env.namespace, process_id="p")

        await ask(replica, way, call, caller)

        await env.asked("p", 4)
    # Its start came without; the call, the timer that it set, and the timer's second attempt.
    assert contexts_of(env.processor) == [{}, caller, caller, caller]
    assert told_in_metadata(env.processor) == [{}, caller, caller, caller]


@pytest.mark.parametrize("way", ["unary", "session"])
async def test_a_context_that_is_none_is_left_out_and_hurts_nobody(
    replica: Replica, way: Way
) -> None:
    async with open_env(replica, streaming=False) as env:
        await env.running("p")
        call = messages.CallRequest(namespace=env.namespace, process_id="p")

        for trace in BROKEN:
            await ask(replica, way, call, trace)

    assert contexts_of(env.processor) == [{}] * (1 + len(BROKEN))
    assert told_in_metadata(env.processor) == [{}] * (1 + len(BROKEN))


async def test_what_vendors_say_and_the_callers_baggage_go_through_the_spans_of_the_engine(
    own_database: str,
) -> None:
    async with (
        running_collector() as receiver,
        running_replica(own_database, {"telemetry.otlp_endpoint": receiver.endpoint}) as replica,
        open_env(replica, streaming=False) as env,
    ):
        await env.running("p", *[answering(set_timer=timer()), Answer()] * 2)
        call = messages.CallRequest(namespace=env.namespace, process_id="p")
        for number, caller in enumerate(({**TRACED, **STATED, **BAGGAGE}, BAGGAGE)):
            await ask(replica, "unary", call, caller)
            await env.asked("p", 3 + 2 * number)

    carried = contexts_of(env.processor)[1:]
    of_the_call, of_the_timer, *untraced = carried
    for context in (of_the_call, of_the_timer):
        assert context["traceparent"].startswith(f"00-{TRACE_ID}-")
        ours, theirs = context["tracestate"].split(",", 1)
        assert ours.startswith("progressor=")
        assert theirs == STATED["tracestate"]
    assert of_the_call["traceparent"] != of_the_timer["traceparent"]
    assert [it["baggage"] for it in carried] == [BAGGAGE["baggage"]] * 4
    assert told_in_metadata(env.processor)[1:] == carried
    # Who has baggage alone has not decided whether it is traced.
    assert not any(TRACE_ID in it["traceparent"] for it in untraced)
