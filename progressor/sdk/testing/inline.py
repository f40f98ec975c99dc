"""An executor without threads: plain handlers of a rehearsal run where the test runs."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Inline(Executor):
    """Runs what it is given at once."""

    def submit(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,  # noqa: ANN401  # as of an Executor
        **kwargs: Any,  # noqa: ANN401  # as of an Executor
    ) -> "Future[Any]":
        """Return a future that has its result already; what the function raises is raised here."""
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future
