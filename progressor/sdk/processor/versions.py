"""Versions of a processor's state, and the functions that lead from each to the next.

A stored state has the version of the code that saved it; one without a version is of version 1. A
step that reads an older one upgrades it in memory. The stored one stays as it is until a step saves
a state. So a processor of either version can run each process until the newer one has saved it.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any

from progressor.sdk.codec.codecs import CheckedCodec, Codec, DecryptionError, Payload
from progressor.sdk.codec.kinds import name_of
from progressor.sdk.processor.checks import name_of_handler
from progressor.sdk.processor.verdicts import Fail, text_of_error

STATE_TOO_NEW = "STATE_TOO_NEW"
"""The reason of a refused step: its state was saved by a newer version of the processor."""

STATE_UPGRADE_FAILED = "STATE_UPGRADE_FAILED"
"""The reason of a step that failed since an old state could not be upgraded."""

_VERSION_MAX = 2**31 - 1

Upgrade = Callable[[Any], Payload]


class StateUpgradeError(Fail):
    """An old state cannot be upgraded: the process breaks, and can be retried after the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=STATE_UPGRADE_FAILED)


@dataclasses.dataclass(frozen=True, slots=True)
class _Upgrade:
    """A function of the user's, and the type of its argument."""

    function: Upgrade
    kind: Any


class StateVersions:
    """The version of a processor's state, and an upgrade from each earlier one."""

    def __init__(self, owner: str, version: int, *, state_type: Payload, codec: Codec) -> None:
        """Check the version; `owner` names the processor in errors.

        Raises:
            TypeError: The version is not an integer.
            ValueError: It is less than 1, or does not fit into 32 bits.
        """
        if type(version) is not int:
            message = f"{owner}: version must be an int, got {version!r}"
            raise TypeError(message)
        if not 1 <= version <= _VERSION_MAX:
            message = f"{owner}: version must be 1 to {_VERSION_MAX}, got {version}"
            raise ValueError(message)
        self.version = version
        self._owner, self._state_type, self._codec = owner, state_type, codec
        self._upgrades: dict[int, _Upgrade] = {}

    def add(self, from_version: int, function: Upgrade) -> None:
        """Register an upgrade from one version to the next.

        Raises:
            TypeError: `function` is not a plain function of one argument, or the codec cannot
                read the type of its argument.
            ValueError: This is not an older version, or it has an upgrade already.
        """
        self.expect_older(from_version)
        if from_version in self._upgrades:
            message = f"{self._owner} already has an upgrade from version {from_version}"
            raise ValueError(message)
        owner = f"{self._owner}: upgrade {name_of_handler(function)}"
        self._upgrades[from_version] = _Upgrade(function, self._kind_of(function, owner))

    def expect_older(self, version: int) -> None:
        """Raise TypeError or ValueError unless this is an older version."""
        if type(version) is not int:
            message = f"{self._owner}: upgrade takes the old version, an int, got {version!r}"
            raise TypeError(message)
        if not 1 <= version < self.version:
            message = (
                f"{self._owner} has version {self.version}: upgrade must be from a smaller one, "
                f"at least 1, got {version}"
            )
            raise ValueError(message)

    def check(self) -> None:
        """Raise ValueError unless there is an upgrade from each older version."""
        missing = [it for it in range(1, self.version) if it not in self._upgrades]
        if missing:
            message = (
                f"{self._owner} has version {self.version} but no upgrade from version "
                f"{', '.join(map(str, missing))}: add @processor.upgrade({missing[0]})"
            )
            raise ValueError(message)

    def read(self, data: bytes, version: int) -> Payload:
        """Return a stored state as the processor's state type; None if there is none.

        Raises:
            StateUpgradeError: An upgrade raised an exception, or what it returned is not of the
                type that comes next.
            ValueError: A state of the processor's own version is not of its state type.
        """
        if not data:
            return None
        at = version or 1
        if at >= self.version:
            return self._codec.decode(data, self._state_type)
        try:
            while at < self.version:
                data = self._upgraded(data, at)
                at += 1
            return self._codec.decode(data, self._state_type)
        except DecryptionError:
            raise  # of the payload, not of an upgrade
        except Exception as error:
            # After the last upgrade `at` is the version of the processor, whose type is not met.
            where = f"from version {at}" if at < self.version else f"to version {at}"
            message = f"the upgrade of the state {where} failed: {text_of_error(error)}"
            raise StateUpgradeError(message) from error

    def _upgraded(self, data: bytes, at: int) -> bytes:
        upgrade = self._upgrades[at]
        upgraded = upgrade.function(self._codec.decode(data, upgrade.kind))
        if upgraded is None:
            message = "it returned None instead of the new state"
            raise TypeError(message)
        return self._codec.encode(upgraded)

    def _kind_of(self, function: Upgrade, owner: str) -> Any:  # noqa: ANN401  # any type of the user's
        """Return the type of the argument of an upgrade; Any if it has no annotation."""
        if not callable(function):
            message = f"{owner} must be a function"
            raise TypeError(message)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            message = (
                f"{owner} must be a plain function, not `async def`: reading step.state runs it"
            )
            raise TypeError(message)
        parameters = inspect.signature(function).parameters
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            message = f"{owner} must take one argument, the old state"
            raise TypeError(message) from None
        try:
            hints = typing.get_type_hints(function)
        except NameError as error:
            message = f"{owner}: the type of its argument cannot be resolved: {error}"
            raise TypeError(message) from error
        kind = hints.get(next(iter(parameters)), Any)
        why = self._codec.unreadable(kind) if isinstance(self._codec, CheckedCodec) else None
        if why is not None:
            message = f"{owner} cannot take a `{name_of(kind)}`: {why}"
            raise TypeError(message)
        return kind
