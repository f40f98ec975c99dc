"""Just enough of PostgreSQL's protocol to say which statement an exchange of messages carries.

A client speaks in *turns*: messages up to a Sync or a Query, which the server answers up to a
ReadyForQuery. Several turns may be under way at once. A hot statement is prepared in one turn and
executed, by its name alone, in others.

Source: PostgreSQL manual, "Frontend/Backend Protocol", "Message Formats".
"""

import dataclasses
import struct

_HEAD = struct.Struct("!cI")
_STARTUP = struct.Struct("!II")
_CANCEL = 80877102
_SSL = 80877103
_GSS = 80877104
_REFUSES_ENCRYPTION = b"N"

SYNC = _HEAD.pack(b"S", 4)
GOODBYE = _HEAD.pack(b"X", 4)
FLUSH = _HEAD.pack(b"H", 4)
_READY_IDLE = _HEAD.pack(b"Z", 5) + b"I"


@dataclasses.dataclass(frozen=True, slots=True)
class Opening:
    """The first packet of a connection; `kind` says what it asks for."""

    packet: bytes

    @property
    def is_cancel(self) -> bool:
        """Whether it cancels the statement of another connection."""
        return self._code == _CANCEL

    @property
    def refusal(self) -> bytes:
        """What to answer where it asks for encryption, which we do not speak; b"": it does not."""
        return _REFUSES_ENCRYPTION if self._code in {_SSL, _GSS} else b""

    @property
    def _code(self) -> int:
        return int(_STARTUP.unpack_from(self.packet)[1])


def size_of_opening(head: bytes) -> int:
    return int.from_bytes(head, "big")


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """Whole messages of a client; `texts` are the statements that they execute.

    ``answered`` says that the server answers them with a ReadyForQuery.
    """

    data: bytes
    texts: tuple[str, ...]
    answered: bool

    @property
    def unsynchronised(self) -> bytes:
        """The same, with a flush in place of the Sync by which PostgreSQL would commit."""
        assert self.data.endswith(SYNC), "only a turn of the extended protocol ends with a Sync"
        return self.data[: -len(SYNC)] + FLUSH


class Messages:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        data, at = self._rest + chunk, 0
        found = []
        while len(data) - at >= _HEAD.size:
            end = at + 1 + int(_HEAD.unpack_from(data, at)[1])
            if end > len(data):
                break
            found.append(data[at:end])
            at = end
        self._rest = data[at:]
        return found


class Turns:
    """What a client says on a connection, turn by turn."""

    def __init__(self) -> None:
        self._messages = Messages()
        self._prepared: dict[bytes, str] = {}
        self._data = b""
        self._bound: list[str] = []
        self._executed: list[str] = []

    def feed(self, chunk: bytes) -> list[Turn]:
        return [
            turn
            for message in self._messages.feed(chunk)
            if (turn := self._take(message)) is not None
        ]

    def _take(self, message: bytes) -> Turn | None:
        self._data += message
        kind, body = message[:1], message[5:]
        match kind:
            case b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text.decode()
            case b"B":
                _, name, _ = body.split(b"\0", 2)
                self._bound.append(self._prepared.get(name, ""))
            case b"E":
                self._executed.append(self._bound[-1] if self._bound else "")
            case b"Q":
                self._executed.append(body.rstrip(b"\0").decode())
            case _:
                pass
        # Between the parts of a turn, whatever else there is waits; a password or a goodbye is
        # one by itself.
        return self._complete(answered=kind in b"QS") if kind in b"QSpXHdcf" else None

    def _complete(self, *, answered: bool) -> Turn:
        turn = Turn(self._data, tuple(self._executed), answered)
        self._data = b""
        self._executed = []
        self._bound = []
        return turn


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Whole messages of a server, of the answer to one turn.

    ``executed`` says that a statement's result is complete with it, ``ended`` that the turn is:
    what the statement did is committed then, and not before.
    """

    data: bytes
    executed: bool
    ended: bool


class Answers:
    """What a server says on a connection, split where a turn is answered."""

    def __init__(self, *, pretends: bool = False) -> None:
        """Pretend to be another backend, as poolers do, if told to."""
        self._messages = Messages()
        self._pretends = pretends
        self.backend = 0
        """The process id of the server's end, once it has told it."""

    def feed(self, chunk: bytes) -> list[Piece]:
        """Return what is complete now, split behind each ReadyForQuery."""
        pieces: list[Piece] = []
        gathered, executed = b"", False
        for message in self._messages.feed(chunk):
            kind = message[:1]
            executed |= kind == b"C"
            if kind == b"K":
                self.backend = int.from_bytes(message[5:9], "big")
                told = 1 if self._pretends else self.backend
                gathered += message[:5] + told.to_bytes(4, "big") + message[9:]
            else:
                gathered += message
            if kind == b"Z":
                pieces.append(Piece(gathered, executed, ended=True))
                gathered, executed = b"", False
        if gathered:
            pieces.append(Piece(gathered, executed, ended=False))
        return pieces


def refusal(code: str, text: str) -> bytes:
    """Return the answer to a turn that PostgreSQL undoes with this SQLSTATE."""
    fields = b"".join(
        field + value.encode() + b"\0"
        for field, value in ((b"S", "ERROR"), (b"V", "ERROR"), (b"C", code), (b"M", text))
    )
    return _HEAD.pack(b"E", 4 + len(fields) + 1) + fields + b"\0" + _READY_IDLE
