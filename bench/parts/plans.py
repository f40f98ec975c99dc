"""What a task's args ask of the bench's processor: a letter, then what it needs.

e  one event and an answer
s  the same, and a timer that is due at once, for as long as the processor is not halted
t  the same, and a timer at the instant that follows (seconds since 1970)
h  an answer after as many seconds as follow
g  the same as e, where it is told how long after the answer of the one before it each was asked
m  as many events as follow, and an answer
j  as the leader of a job: so many nodes of plan n as follow, and at their join the end
n  as the node of a job: a result, and the end
w  an answer once the processor is told to release what it holds
"""

import struct

from progressor.v1 import nodes_pb2

SIZE = 64
"""Bytes of args and of an event's payload."""

_NUMBER = struct.Struct("!d")


def plan(letter: str, number: float = 0.0) -> bytes:
    """Return the args of a plan."""
    return (letter.encode() + _NUMBER.pack(number)).ljust(SIZE, b".")


def letter_of(args: bytes) -> str:
    """Return which plan it is."""
    return chr(args[0])


def number_of(args: bytes) -> float:
    """Return the number that goes with it."""
    (number,) = _NUMBER.unpack_from(args, 1)
    return float(number)


def nodes(count: int) -> list[nodes_pb2.NodeSpec]:
    """Return as many nodes of a job that depend on nothing."""
    args = plan("n")
    return [nodes_pb2.NodeSpec(name=f"n{number}", args=args) for number in range(count)]
