"""Stand-ins for classes that only answer: each call is checked against the real signature."""

from typing import Any
from unittest import mock


class _Stub:
    """As `mock.create_autospec` of a class, which takes 50 ms for one of storage's."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        method = mock.create_autospec(getattr(self._kind, name).__get__(self))
        setattr(self, name, method)
        return method


def stub(kind: type, **answers: Any) -> Any:
    """Return an object with the methods of a class, which answer as told and note their calls.

    A list is an answer for each call in turn, where an exception is raised; an exception is raised
    by each call; any other value is each call's answer.
    """
    made = _Stub(kind)
    for name, answer in answers.items():
        method = getattr(made, name)
        if isinstance(answer, list | Exception):
            method.side_effect = answer
        else:
            method.return_value = answer
    return made
