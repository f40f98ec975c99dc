"""A codec that encrypts what another one encodes: the engine and its database see no payload.

AES-256-GCM. A nonce is random, so a key must not encrypt more than 2**32 payloads: the chance that
two of them share a nonce is then below 2**-32 (NIST SP 800-38D, 8.3). Two with one nonce would show
how they differ, and let others be forged.

The engine compares repeated requests by their bytes, so those with an idempotency key must encrypt
alike: their nonce is 96 bits of HMAC-SHA256 over the namespace, the process, the idempotency key
and the payload. It is as good as a random one, but shows whether a repeat has the same payload.

Only the header is bound to the ciphertext. A namespace or a process id cannot be: payloads move
between processes and namespaces by messages, jobs, schedules and imports, and whoever encrypts one
does not know where it will be read.
"""

import hashlib
import hmac
import os
from typing import Any

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as error:  # pragma: no cover
    _message = (
        "encrypted payloads need the package cryptography: pip install progressor[encryption]"
    )
    raise ImportError(_message) from error

from progressor.sdk.codec.codecs import CheckedCodec, Codec, DecryptionError, Payload
from progressor.sdk.codec.envelope import NONCE_BYTES, header_of, is_encrypted, opened
from progressor.sdk.codec.keys import Keys

_NONCE_KEY = b"progressor: nonces of repeatable requests, 1"


class Encrypted:
    """A codec whose payloads are those of another codec, encrypted.

    Give the same to clients and processors: ``Client(…, codec=Encrypted(JSON, keys=…))``. None
    stays ``b""``, and shows. Metadata, ids and the messages of errors are not payloads, and are not
    encrypted.
    """

    def __init__(self, codec: Codec, *, keys: Keys, accept_plain: bool = False) -> None:
        """Encrypt what `codec` encodes.

        Args:
            codec: For the values, such as ``JSON``.
            keys: See `Keys`.
            accept_plain: Also decode payloads that are not encrypted, which were stored before.
                False: they raise ValueError, so that nobody can pass one for an encrypted one.
        """
        self._codec, self._keys, self._accept_plain = codec, keys, accept_plain
        self._scope: bytes | None = None
        # A key that cannot be had is an error now, not after a step has run.
        keys.encrypting()

    def encode(self, value: Payload, /) -> bytes:
        """Return `value` as the other codec encodes it, encrypted; ``b""`` stays as it is."""
        plain = self._codec.encode(value)
        if not plain:
            return plain
        key_id, key = self._keys.encrypting()
        nonce = os.urandom(NONCE_BYTES) if self._scope is None else _nonce(key, self._scope, plain)
        header = header_of(key_id)
        return header + nonce + AESGCM(key).encrypt(nonce, plain, header)

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return the decrypted `data` as the other codec decodes it.

        Raises:
            KeyNotFoundError: There is no key with the id in `data`.
            DecryptionError: `data` was changed, or encrypted with another key of that id.
            ValueError: It is not encrypted, or not a `kind`.
        """
        return self._codec.decode(self.decrypted(data), kind)

    def decrypted(self, data: bytes, /) -> bytes:
        """Return what the other codec has encoded, as `decode` does before it decodes that."""
        if not data:
            return data
        if not is_encrypted(data):
            if self._accept_plain:
                return data
            message = "the payload is not encrypted (and `accept_plain` is false)"
            raise ValueError(message)
        envelope = opened(data)
        key = self._keys.decrypting(envelope.key_id)
        try:
            return AESGCM(key).decrypt(envelope.nonce, envelope.ciphertext, envelope.header)
        except InvalidTag:
            message = (
                f"the payload was changed, or was encrypted with another key than the present "
                f"{envelope.key_id!r}"
            )
            raise DecryptionError(message) from None

    def repeatable(self, scope: str, /) -> "Encrypted":
        """Return a codec that encrypts the same value as the same bytes within a scope."""
        made = Encrypted(self._codec, keys=self._keys, accept_plain=self._accept_plain)
        made._scope = scope.encode()
        return made

    def unreadable(self, kind: object, /) -> str | None:
        """Return why the other codec cannot write and read a `kind`."""
        return self._codec.unreadable(kind) if isinstance(self._codec, CheckedCodec) else None

    def unwritable(self, kind: object, /) -> tuple[object, str] | None:
        """Return a part of `kind` that the other codec cannot write, and why."""
        return self._codec.unwritable(kind) if isinstance(self._codec, CheckedCodec) else None


def _nonce(key: bytes, scope: bytes, plain: bytes) -> bytes:
    """Return a nonce that only another scope or payload changes."""
    own = hmac.digest(key, _NONCE_KEY, hashlib.sha256)
    words = hmac.new(own, len(scope).to_bytes(4, "big") + scope, hashlib.sha256)
    words.update(plain)
    return words.digest()[:NONCE_BYTES]
