"""A codec that encrypts the output of another one: the engine and its database see no plaintext.

AES-256-GCM. A nonce is random, so a key must not encrypt more than 2**32 payloads: the chance that
two of them share a nonce is then below 2**-32 (NIST SP 800-38D, 8.3). Two payloads with the same
nonce would reveal their difference, and allow others to be forged.

The engine compares repeated requests by their bytes, so those with an idempotency key must encrypt
alike: their nonce is 96 bits of HMAC-SHA256 over the header, the namespace, the process, the
idempotency key and the payload. It is as secure as a random one, but reveals whether a repeat has
the same payload.

Only the header is bound to the ciphertext. A namespace or a process id cannot be: payloads move
between processes and namespaces by messages, jobs, schedules and imports, and the sender does not
know where it will be read.
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
    """A codec that encrypts the payloads of another codec.

    Use the same one in clients and processors: ``Client(…, codec=Encrypted(JSON, keys=…))``. None
    stays ``b""``, which is visible. Metadata, ids and the messages of errors are not payloads, and
    are not encrypted.
    """

    def __init__(self, codec: Codec, *, keys: Keys, accept_plain: bool = False) -> None:
        """Encrypt what `codec` encodes.

        Args:
            codec: The codec of the values, such as ``JSON``.
            keys: See `Keys`.
            accept_plain: Also decode plaintext payloads, such as those stored before encryption.
                False: they raise ValueError, so that none can be passed off as an encrypted one.
        """
        self._codec, self._keys, self._accept_plain = codec, keys, accept_plain
        self._scope: bytes | None = None
        # Raise an error for a missing key now, not after a step has run.
        keys.encrypting()

    def encode(self, value: Payload, /) -> bytes:
        """Return `value` as the other codec encodes it, encrypted; ``b""`` stays as it is."""
        plain = self._codec.encode(value)
        if not plain:
            return plain
        key_id, key = self._keys.encrypting()
        header, scope = header_of(key_id), self._scope
        nonce = os.urandom(NONCE_BYTES) if scope is None else _nonce(key, header + scope, plain)
        return header + nonce + AESGCM(key).encrypt(nonce, plain, header)

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return the decrypted `data` as the other codec decodes it.

        Raises:
            KeyNotFoundError: No key has the id in `data`.
            DecryptionError: `data` was changed, or encrypted with another key of that id.
            ValueError: It is not encrypted, or not a `kind`.
        """
        return self._codec.decode(self.decrypted(data), kind)

    def decrypted(self, data: bytes, /) -> bytes:
        """Return the decrypted `data`, still encoded by the other codec."""
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
                f"the payload was modified, or was encrypted with a different key of the id "
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
    """Return a nonce that depends only on the key, the scope and the payload."""
    own = hmac.digest(key, _NONCE_KEY, hashlib.sha256)
    words = hmac.new(own, len(scope).to_bytes(4, "big") + scope, hashlib.sha256)
    words.update(plain)
    return words.digest()[:NONCE_BYTES]
