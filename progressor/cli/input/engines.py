"""The client of a command: one attempt per request, payloads as bytes."""

import contextlib
from collections.abc import AsyncIterator

import grpc

from progressor.cli.input.inputs import bad_input
from progressor.cli.input.options import EngineOptions, NamespaceOptions
from progressor.sdk.client.client import Client
from progressor.sdk.codec.codecs import BYTES


@contextlib.asynccontextmanager
async def client_of(engine: EngineOptions) -> AsyncIterator[Client]:
    """Return a client of the given engine, closed at the end of the context.

    Raises:
        InvalidRequestError: The authority's file cannot be read.
    """
    namespace = engine.namespace if isinstance(engine, NamespaceOptions) else "default"
    client = Client(
        engine.address,
        namespace=namespace,
        codec=BYTES,
        timeout=engine.timeout_duration,
        credentials=credentials_of(engine),
        session=False,
        repeats=False,  # The user wants to know at once that the engine is unreachable.
    )
    async with client:
        yield client


def credentials_of(engine: EngineOptions) -> grpc.ChannelCredentials | None:
    """Return the credentials for TLS; None without TLS.

    Raises:
        InvalidRequestError: The authority's file cannot be read.
    """
    if engine.tls_authority is not None:
        try:
            return grpc.ssl_channel_credentials(engine.tls_authority.read_bytes())
        except OSError as error:
            what = f"cannot read {engine.tls_authority}: {error.strerror}"
            raise bad_input("--tls-authority", what) from error
    return grpc.ssl_channel_credentials() if engine.tls else None
