"""What the args of a task tell the bench's processor to do: a letter, then its parameter.

e  one event and an answer
s  the same, and a timer that is due at once, until the processor is halted
t  the same, and a timer at the instant that follows (seconds since 1970)
h  an answer after the given number of seconds
g  the same as e; the time since the previous answer is recorded
m  the given number of events, and an answer
j  as the leader of a job: the given number of nodes with plan n, and finish at their join
n  as the node of a job: a result, and finish
x  one event and the given number of messages: notifies with plan e to the next processes
w  an answer once the bench releases the held steps
"""

import struct

from progressor.v1 import messages_pb2, nodes_pb2

SIZE = 64
"""Bytes of args and of an event's payload."""

BINS_PER_SECOND = 100
"""Into which the processor sorts the steps of plan s."""

_NUMBER = struct.Struct("!d")


def plan(letter: str, number: float = 0.0) -> bytes:
    return (letter.encode() + _NUMBER.pack(number)).ljust(SIZE, b".")


def letter_of(args: bytes) -> str:
    return chr(args[0])


def number_of(args: bytes) -> float:
    (number,) = _NUMBER.unpack_from(args, 1)
    return float(number)


def nodes(count: int) -> list[nodes_pb2.NodeSpec]:
    args = plan("n")
    return [nodes_pb2.NodeSpec(name=f"n{number}", args=args) for number in range(count)]


def messages(count: int, process_id: str) -> list[messages_pb2.Message]:
    """Return messages to the processes whose numbers follow that of a process."""
    prefix, _, number = process_id.rpartition("-")
    args = plan("e")
    return [
        messages_pb2.Message(
            kind=messages_pb2.MESSAGE_KIND_NOTIFY, process_id=f"{prefix}-{receiver}", args=args
        )
        for receiver in range(int(number) + 1, int(number) + 1 + count)
    ]
