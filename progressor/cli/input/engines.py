"""The client of a command: one attempt per request, payloads as bytes."""

import contextlib
from collections.abc import AsyncIterator

import grpc

from progressor.cli.input.inputs import bad_input
from progressor.cli.input.options import Engine, Target
from progressor.sdk.client.client import Client
from progressor.sdk.codec.codecs import BYTES


@contextlib.asynccontextmanager
async def client_of(engine: Engine) -> AsyncIterator[Client]:
    """Return a client for what the options say, closed at the end.

    Raises:
        InvalidRequestError: The file of the authority cannot be read.
    """
    namespace = engine.namespace if isinstance(engine, Target) else "default"
    client = Client(
        engine.address,
        namespace=namespace,
        codec=BYTES,
        timeout=engine.patience,
        credentials=credentials_of(engine),
        session=False,
        repeats=False,  # A person wants to know now that the engine cannot be reached.
    )
    async with client:
        yield client


def credentials_of(engine: Engine) -> grpc.ChannelCredentials | None:
    """Return what TLS needs, None without TLS.

    Raises:
        InvalidRequestError: The file of the authority cannot be read.
    """
    if engine.tls_authority is not None:
        try:
            return grpc.ssl_channel_credentials(engine.tls_authority.read_bytes())
        except OSError as error:
            what = f"cannot read {engine.tls_authority}: {error.strerror}"
            raise bad_input("--tls-authority", what) from error
    return grpc.ssl_channel_credentials() if engine.tls else None
