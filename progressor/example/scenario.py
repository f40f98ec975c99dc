"""What scenarios share: a client that runs an example, prints what happens, and checks it."""

import abc
import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
from rich.console import Console
from rich.text import Text

from progressor import errors
from progressor.sdk import (
    Client,
    NamespaceAlreadyExistsError,
    NamespaceConfig,
    Processor,
    ProgressorError,
)


class ScenarioError(errors.ProgressorError):
    """A scenario had an unexpected result."""

    reason = "SCENARIO_FAILED"

    def __init__(self, step: str, why: str) -> None:
        self.step, self.why = step, why
        super().__init__(f"the example failed to {step}: {why}")


@contextlib.contextmanager
def explaining(step: str) -> Iterator[None]:
    """Turn an error of progressor into a ScenarioError of this step."""
    try:
        yield
    except ScenarioError:
        raise
    except ProgressorError as error:
        raise ScenarioError(step, f"{error} ({error.reason})") from error


def namespace_of(processor: Processor[Any], target: str) -> NamespaceConfig:
    """Return the namespace of a processor, which has its name."""
    return NamespaceConfig(name=processor.name, processor_targets=(target,))


class Scenario(abc.ABC):
    """One run of an example, printed as it happens; `run` makes the ids of its processes unique."""

    goal: ClassVar[str]
    timeout_seconds: ClassVar[float] = 60.0
    commands: ClassVar[tuple[str, ...]]
    """Suggested afterwards; {id} stands for a process that remains, {namespace} for its
    namespace."""

    processor: Processor[Any]
    others: ClassVar[tuple[Processor[Any], ...]] = ()
    """Processors of further namespaces, at the same address."""

    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console, self._run = console, run

    def namespace(self, processor_target: str) -> NamespaceConfig:
        """Return the namespace of the example."""
        return namespace_of(self.processor, processor_target)

    async def play(self, client: Client) -> tuple[str, ...]:
        """Run the scenario, which takes seconds; return ids of processes that remain.

        Args:
            client: Its namespace is that of the example.

        Raises:
            ScenarioError: An unexpected result; the message says which.
        """
        self._client = client
        try:
            with explaining(self.goal):
                async with asyncio.timeout(self.timeout_seconds):
                    return await self._play()
        except TimeoutError as error:
            why = f"it did not end within {self.timeout_seconds:g} s"
            raise ScenarioError(self.goal, why) from error

    @abc.abstractmethod
    async def _play(self) -> tuple[str, ...]: ...

    def _say(self, text: str | Text, *, style: str = "") -> None:
        text = Text(text, style) if isinstance(text, str) else text
        self._console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def _step(self, verb: str, subject: str, what: object = None) -> Iterator[None]:
        """Print a request, with its args or a description, and name it in errors."""
        text = Text.assemble((f"{verb:>7} ", "bold cyan"), subject)
        self._console.print(text if what is None else text.append(f"  {_words(what)}", "dim"))
        with explaining(f"{verb} {subject}"):
            yield

    def _answered(self, answer: object) -> None:
        self._console.print(Text.assemble(("      ✓ ", "green"), _words(answer)))

    def _refused(self, text: str) -> None:
        self._console.print(Text.assemble(("      ✗ ", "yellow"), text))


async def register(client: Client, config: NamespaceConfig, *, cell: str = "") -> str:
    """Create the namespace of an example, or update it if it exists; return its cell.

    Namespaces that work together have to live in one `cell`.
    """
    try:
        found = await client.namespaces.create(dataclasses.replace(config, cell=cell))
    except NamespaceAlreadyExistsError:
        fields = ("processor_targets", "processor_credentials", "retry_policies")
        found = await client.namespaces.update(config, fields=fields)
    return found.cell


def _words(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
