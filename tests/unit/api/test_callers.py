"""Who sends a request, by what gRPC says of its connection and metadata."""

import logging

import pytest

from progressor.api.guard.callers import credentials_of
from progressor.api.server.server import _is_wanted

SPIFFE = "peer_spiffe_id"
SAN = "x509_subject_alternative_name"


class Context:
    """The context of a call, as far as it says who calls."""

    def __init__(
        self,
        *,
        certificate: dict[str, list[bytes]] | None = None,
        metadata: tuple[tuple[str, str | bytes], ...] = (),
        peer: str = "ipv4:192.0.2.1:5",
    ) -> None:
        self._certificate, self._metadata, self._peer = certificate or {}, metadata, peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._certificate

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    def peer(self) -> str:
        return self._peer


@pytest.mark.parametrize(
    ("certificate", "names"),
    [
        ({SPIFFE: [b"spiffe://corp/a"], SAN: [b"a.corp"]}, ("spiffe://corp/a",)),
        ({SAN: [b"a.corp", b"b.corp"]}, ("a.corp", "b.corp")),
        ({SAN: [b"spiffe://corp/admin"]}, ()),
        ({SAN: [b"SPIFFE://corp/admin", b"a.corp"]}, ("a.corp",)),
        ({SPIFFE: [b"spiffe://corp/a", b"spiffe://corp/b"]}, ()),
        ({SPIFFE: [b"spiffe://corp/" + b"a" * 300], SAN: [b"a.corp"]}, ()),
        ({"x509_common_name": [b"admin"]}, ()),
        ({SAN: [b"a\nb"]}, ()),
    ],
)
def test_a_certificate_is_known_by_names_of_one_kind(
    certificate: dict[str, list[bytes]], names: tuple[str, ...]
) -> None:
    assert credentials_of(Context(certificate=certificate)).certificate_names == names


@pytest.mark.parametrize(
    ("metadata", "token"),
    [
        ((), None),
        ((("authorization", "Bearer abc"),), "abc"),
        ((("authorization", "BEARER abc"),), "abc"),
        ((("authorization", "Basic abc"),), ""),
        ((("authorization", "Bearer a"), ("authorization", "Bearer b")), ""),
        ((("authorization", b"Bearer abc"),), ""),
        ((("x-authorization", "Bearer abc"),), None),
    ],
)
def test_a_token_is_the_only_authorization(
    metadata: tuple[tuple[str, str | bytes], ...], token: str | None
) -> None:
    assert credentials_of(Context(metadata=metadata)).token == token


@pytest.mark.parametrize(
    ("peer", "transport", "is_safe"),
    [
        ("ipv4:127.0.0.1:5", b"insecure", True),
        ("ipv6:%5B::1%5D:5", b"insecure", True),
        ("unix:", b"insecure", True),
        ("ipv4:192.0.2.1:5", b"insecure", False),
        ("ipv4:192.0.2.1:5", b"ssl", True),
    ],
)
def test_a_token_in_plaintext_counts_only_from_the_same_machine(
    peer: str, transport: bytes, is_safe: object
) -> None:
    certificate = {"transport_security_type": [transport]}

    assert credentials_of(Context(certificate=certificate, peer=peer)).tokens_allowed is is_safe


def test_no_token_gets_into_the_log_by_what_grpc_says_of_bad_metadata() -> None:
    text = r"Invalid encoding on b'Bearer prg_1_2\xff'"
    told = logging.LogRecord("grpc._cython.cygrpc", logging.ERROR, "", 0, text, (), None)
    other = logging.LogRecord("grpc._cython.cygrpc", logging.ERROR, "", 0, "Other", (), None)

    assert not _is_wanted(told)
    assert _is_wanted(other)
