"""The keys of an issuer: fetched in the background, at a bounded rate; the last good ones are kept.

A request whose token names an unknown key triggers a fetch, and waits briefly for it.
"""

import asyncio
import contextlib
import dataclasses
import http.client
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

from progressor.settings.issuers import Issuer
from progressor.wire.https import HttpsError, discover, fetch_json

Key = RSAKey | ECKey | OKPKey

KEYS_MAX = 100
RSA_BITS_MIN = 2048

_MEMBERS = ("kty", "kid", "use", "key_ops", "alg", "crv", "n", "e", "x", "y")
_MEMBER_LENGTH_MAX = 1366
"""Of base64: 8192 bits."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often keys are fetched, in seconds.

    ``age``: the interval after a successful fetch; ``retry``: after a failed one; ``gap``: the
    minimum when unknown keys trigger fetches; ``hold``: how long a request waits for a fetch.
    """

    age: float = 600.0
    retry: float = 10.0
    gap: float = 30.0
    hold: float = 2.0


class IssuerKeys:
    """The keys of one issuer by their ids (kid)."""

    def __init__(
        self,
        name: str,
        issuer: Issuer,
        *,
        counted: Callable[[str], None] = lambda _: None,
        pace: Pace = Pace(),
    ) -> None:
        """Create an empty set of keys, for `run` to fetch; ``counted`` gets each fetch's result."""
        self._name, self._issuer, self._counted, self._pace = name, issuer, counted, pace
        self._keys: Mapping[str, Key] = {}
        self._document: object = None
        self._fault: str | None = None
        self._wanted = asyncio.Event()
        self._fetched: asyncio.Future[None] | None = None
        self._began_at = float("-inf")

    def get(self, kid: str) -> Key | None:
        """Return a key; the same object while the issuer publishes the same keys."""
        return self._keys.get(kid)

    async def ask(self) -> None:
        """Request a fetch, and wait briefly for it if it can begin now."""
        self._wanted.set()
        loop = asyncio.get_running_loop()
        if self._fetched is None:
            if loop.time() < self._began_at + self._pace.gap:
                return
            self._fetched = loop.create_future()
        await asyncio.wait({self._fetched}, timeout=self._pace.hold)

    async def run(self) -> None:
        """Fetch periodically and on request, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            self._began_at = loop.time()
            fetched = self._fetched = self._fetched or loop.create_future()
            is_good = await self._fetch()
            self._fetched = None
            fetched.set_result(None)
            due_at = self._began_at + (self._pace.age if is_good else self._pace.retry)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._wanted.wait()
                    await asyncio.sleep(self._began_at + self._pace.gap - loop.time())

    async def _fetch(self) -> bool:
        try:
            self._keys, self._document = await asyncio.to_thread(self._read)
        except HttpsError as error:
            self._note("failed", str(error))
            return False
        self._note("ok", None)
        return True

    def _read(self) -> tuple[Mapping[str, Key], object]:
        """Return the keys and what they are from; in a thread, since many keys take a while."""
        ca = self._issuer.ca
        url = self._issuer.jwks_url or discover(self._issuer.issuer, "jwks_uri", ca=ca)
        status, document = fetch_json(url, ca=ca)
        if status != http.client.OK:
            raise HttpsError(f"{url}: status {status}")
        return self._keys if document == self._document else _keys_of(document), document

    def _note(self, result: str, fault: str | None) -> None:
        self._counted(result)
        if fault == self._fault:
            return
        was, self._fault = self._fault, fault
        facts = {"issuer": self._name, "keys": len(self._keys)}
        if fault is not None:
            _log.error("keys not fetched; keeping the last ones", extra={**facts, "why": fault})
        elif was is not None:
            _log.info("keys fetched again", extra=facts)


def _keys_of(document: Mapping[str, Any]) -> Mapping[str, Key]:
    """Return the keys of a JWKS that can verify signatures; others are left out (RFC 7517, 5).

    Raises:
        HttpsError: The document is not a JWKS, or has no usable key.
    """
    found: dict[str, Key] = {}
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise HttpsError(f"keys must be a list of at most {KEYS_MAX} keys")
    for each in listed:
        key = _key_of(each)
        if key is None:
            continue
        kid = each["kid"]
        if kid in found:
            raise HttpsError(f"two keys have the kid {kid!r:.200}")
        found[kid] = key
    if not found:
        raise HttpsError("none of the keys can be used to verify signatures")
    return found


def _key_of(each: object) -> Key | None:
    if not isinstance(each, dict) or not isinstance(each.get("kid"), str):
        return None
    # A private key that everybody can read proves nothing, and finding its primes takes minutes.
    public = {name: each[name] for name in _MEMBERS if name in each}
    if "d" in each or any(
        isinstance(it, str) and len(it) > _MEMBER_LENGTH_MAX for it in public.values()
    ):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            key = import_key(public)
            key.check_use("sig")
            key.check_key_op("verify")
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if isinstance(key, RSAKey):
        return key if key.public_key.key_size >= RSA_BITS_MIN else None
    return key if isinstance(key, ECKey | OKPKey) else None
