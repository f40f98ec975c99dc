"""Jobs on the wire: any message is accepted or refused by field, and nothing is lost."""

import contextlib
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor import errors
from progressor.api.calls import page_tokens
from progressor.api.calls.validation import Violations
from progressor.api.jobs import codec as job_codec
from progressor.domain.jobs.graph import decode_graph, encode_graph
from progressor.domain.jobs.job import Job, JobState, Node, NodeCounts
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.process import Leadership, process_key
from progressor.domain.processes.task import NodeState, TaskError
from progressor.v1 import namespace_service_pb2, nodes_pb2
from progressor.wire import fields as wire
from progressor.wire import nodes as node_wire
from progressor.wire import policies as policy_wire
from tests.property.test_constraints_wire import anything
from tests.property.test_wire import INSTANTS, INT32, INT64, TEXTS

PAYLOAD_BYTES_MAX = 20
COUNTS = st.integers(0, 50_000)
DURATIONS = st.timedeltas(dt.timedelta(microseconds=1), policy_wire.INTERVAL_MAX)
ERRORS = st.builds(TaskError, code=st.integers(1, 16), reason=TEXTS, message=TEXTS)
NODES = st.builds(
    Node,
    ordinal=COUNTS,
    name=TEXTS,
    state=st.sampled_from(NodeState),
    follower=st.builds(process_key, TEXTS, TEXTS),
    predecessors=st.lists(TEXTS, max_size=3).map(tuple),
    skipped_because_of=st.none() | TEXTS.filter(bool),
    args=st.binary(max_size=20),
    result=st.binary(max_size=20),
    error=st.none() | ERRORS,
    target=st.none() | TEXTS.filter(bool),
    constraints=st.none(),
    created_at=INSTANTS,
    ready_at=st.none() | INSTANTS,
    started_at=st.none() | INSTANTS,
    ended_at=st.none() | INSTANTS,
    attempt=st.integers(1, 2**31 - 1),
    revision=st.integers(1, 2**63 - 1),
)
JOBS = st.builds(
    Job,
    key=st.builds(process_key, TEXTS, TEXTS),
    state=st.sampled_from(JobState),
    detail=st.none() | TEXTS.filter(bool),
    led_by=st.sampled_from(Leadership),
    counts=st.builds(
        NodeCounts,
        waiting=COUNTS,
        ready=COUNTS,
        running=COUNTS,
        done=COUNTS,
        failed=COUNTS,
        skipped=COUNTS,
        cancelled=COUNTS,
    ),
    created_at=INSTANTS,
    updated_at=INSTANTS,
    ended_at=st.none() | INSTANTS,
    deadline_at=st.none() | INSTANTS,
    schedule_id=st.none() | TEXTS.filter(bool),
    revision=st.integers(1, 2**63 - 1),
    retry_count=st.integers(0, 2**31 - 1),
)
ANY_SPEC = st.builds(
    nodes_pb2.NodeSpec,
    name=TEXTS,
    namespace=st.just("stock") | TEXTS,
    process_id=TEXTS,
    predecessors=st.lists(TEXTS, max_size=3),
    args=st.binary(max_size=PAYLOAD_BYTES_MAX + 2),
    wants_results=st.booleans(),
    constraints=st.none() | anything,
    retry_policy=st.none()
    | st.builds(namespace_service_pb2.RetryPolicy, coefficient=st.floats(), attempts_max=INT32),
    zombie_policy=st.integers(-1, 4),
    target=st.text(max_size=5),
)


@given(st.lists(ANY_SPEC, max_size=3), INT64, INT32)
def test_any_nodes_are_taken_and_kept_or_refused_by_their_field(
    specs: list[nodes_pb2.NodeSpec], seconds: int, nanos: int
) -> None:
    message = nodes_pb2.StartNodes(nodes=specs)
    message.timeout.seconds, message.timeout.nanos = seconds, nanos
    sent = nodes_pb2.StartNodes.FromString(message.SerializeToString())

    violations = Violations()
    action = violations.attempt(
        node_wire.start_nodes_from_wire, sent, "start_nodes", PAYLOAD_BYTES_MAX
    )

    if action is None:
        with pytest.raises(errors.InvalidRequestError, match=r"^start_nodes"):
            violations.raise_any()
    else:
        assert [node.name for node in action.nodes] == [spec.name for spec in specs]
        assert all(len(node.args) <= PAYLOAD_BYTES_MAX for node in action.nodes)
        assert decode_graph(encode_graph(action)) == action


@given(
    st.builds(
        RetryPolicy,
        initial_interval=DURATIONS,
        coefficient=st.floats(1, 1e300),
        interval_max=DURATIONS,
        jitter=st.floats(0, 1),
        attempts_max=st.integers(1, policy_wire.ATTEMPTS_MAX),
        elapsed_max=st.none() | DURATIONS,
        non_retryable_reasons=st.lists(TEXTS, max_size=3).map(tuple),
    )
)
def test_a_policy_survives_a_round_trip(policy: RetryPolicy) -> None:
    message = policy_wire.retry_policy_to_wire(policy)

    assert policy_wire.retry_policy_from_wire(message, "retry_policy") == policy


@given(JOBS, st.lists(NODES, max_size=5))
def test_changes_lose_no_node(job: Job, nodes: list[Node]) -> None:
    told = list(job_codec.changes_to_wire(job, nodes, sent_revision=0))

    assert [it.name for message in told for it in message.nodes] == [it.name for it in nodes]
    assert told[-1].job == job_codec.job_to_wire(job)


@given(INSTANTS, TEXTS.filter(lambda it: 0 < len(it.encode()) <= wire.ID_BYTES_MAX))
def test_a_token_of_a_job_comes_back_or_is_refused(created_at: dt.datetime, job_id: str) -> None:
    token = page_tokens.JOBS.write((created_at, job_id))

    try:
        assert page_tokens.JOBS.read(token) == (created_at, job_id)
    except errors.InvalidRequestError:
        assert any(wire.id_faults(job_id))


@given(st.text(max_size=60))
def test_any_text_is_a_token_or_refused(token: str) -> None:
    with contextlib.suppress(errors.InvalidRequestError):
        assert (page_tokens.JOBS.read(token) is None) == (not token)
