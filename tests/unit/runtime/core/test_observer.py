"""Observers are notified of named points."""

from progressor.runtime.core.observer import Observers


def test_everybody_is_told_of_a_point_with_its_facts() -> None:
    observers = Observers()
    heard: list[tuple[str, dict[str, object]]] = []
    for _ in range(2):
        observers.add(lambda point, facts: heard.append((point, facts)))

    observers.tell("claimed", task_id=7)

    assert heard == [("claimed", {"task_id": 7})] * 2
