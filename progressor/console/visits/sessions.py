"""Sessions: what the console remembers of a browser, in memory, under an id that only it knows.

The tokens of a login stay here, and reach neither a page nor a cookie. A restart of the
console ends all sessions.
"""

import collections
import dataclasses
import datetime as dt
import secrets

from progressor.clock import Clock
from progressor.console.visits.logins import Begun, Login

SESSIONS_MAX = 10_000
"""Of those that have logged in, and again of those that have not."""

IDLE_MAX = dt.timedelta(hours=12)
LIFETIME_MAX = dt.timedelta(days=7)
_NOTES_MAX = 10


@dataclasses.dataclass(slots=True, kw_only=True)
class Session:
    """One browser: ``token`` None: it has not logged in. ``notes`` are shown once.

    ``form_token`` is in every form: another site can make a browser send a form, but not read it.
    ``begun``: a login at the issuer that has not come back; only the last one counts.
    """

    session_id: str
    form_token: str
    opened_at: float
    seen_at: float
    token: str | Login | None = dataclasses.field(default=None, repr=False)
    begun: Begun | None = None
    notes: list[str] = dataclasses.field(default_factory=list)

    def note(self, text: str) -> None:
        """Have the next page show a text."""
        self.notes = [*self.notes[1 - _NOTES_MAX :], text]

    def take_notes(self) -> list[str]:
        """Return what is to be shown, which is then forgotten."""
        notes, self.notes = self.notes, []
        return notes

    def take_begun(self) -> Begun | None:
        """Return the login that was begun, which is then forgotten."""
        begun, self.begun = self.begun, None
        return begun


class Sessions:
    """The sessions of a console; of too many, the one that has been idle longest ends.

    Each request without a cookie opens one, so that anybody can open many: those never end the
    sessions of visitors who have logged in.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The longest idle first.
        self._known: collections.OrderedDict[str, Session] = collections.OrderedDict()
        self._unknown: collections.OrderedDict[str, Session] = collections.OrderedDict()

    def open(self, token: str | Login | None = None) -> Session:
        """Return a new session."""
        now = self._clock.monotonic()
        session = Session(
            session_id=secrets.token_urlsafe(32),
            form_token=secrets.token_urlsafe(32),
            opened_at=now,
            seen_at=now,
            token=token,
        )
        sessions = self._among(session)
        sessions[session.session_id] = session
        while len(sessions) > SESSIONS_MAX:
            self.end(next(iter(sessions)))
        self._end_idle()
        return session

    def find(self, session_id: str) -> Session | None:
        """Return the session with an id, which is in use now; None: none, or it has ended."""
        self._end_idle()
        session = self._known.get(session_id) or self._unknown.get(session_id)
        if session is None or not self.is_open(session):
            return None
        session.seen_at = self._clock.monotonic()
        self._among(session).move_to_end(session_id)
        return session

    def is_open(self, session: Session) -> bool:
        """Return whether a session goes on; one that was idle for too long, or is too old, ends."""
        now = self._clock.monotonic()
        idle, age = now - session.seen_at, now - session.opened_at
        if idle > IDLE_MAX.total_seconds() or age > LIFETIME_MAX.total_seconds():
            self.end(session.session_id)
        return session.session_id in self._among(session)

    def end(self, session_id: str) -> None:
        """Forget a session and the tokens of its login. Safe to repeat."""
        self._unknown.pop(session_id, None)
        ended = self._known.pop(session_id, None)
        if ended is not None and isinstance(ended.token, Login):
            ended.token.forget()

    def has(self, token: str | Login) -> bool:
        """Return whether any session is logged in with a token."""
        return any(it.token == token for it in self._known.values())

    def _among(self, session: Session) -> collections.OrderedDict[str, Session]:
        return self._unknown if session.token is None else self._known

    def _end_idle(self) -> None:
        """Forget sessions that were idle for too long, and the tokens in them."""
        for sessions in (self._known, self._unknown):
            while sessions and not self.is_open(next(iter(sessions.values()))):
                pass
