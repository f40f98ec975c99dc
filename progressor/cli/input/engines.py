"""The client of a command: one attempt per request, payloads as bytes."""

import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator

import grpc

from progressor.cli.input.inputs import bad_input
from progressor.cli.input.options import Engine, Target
from progressor.sdk.client.client import Client
from progressor.sdk.codec.codecs import BYTES
from progressor.sdk.sending.connection import Connection, Endpoint
from progressor.sdk.sending.exchange import Exchange, Result


class _OneAttempt(Connection):
    """A connection that repeats nothing: a person wants to know now that nobody is there."""

    async def send(self, exchange: Exchange[Result]) -> Result:
        """Send once."""
        return await super().send(dataclasses.replace(exchange, repeatable=False))


@contextlib.asynccontextmanager
async def client_of(engine: Engine) -> AsyncIterator[Client]:
    """Return a client for what the options say, closed at the end.

    Raises:
        InvalidRequestError: The file of the authority cannot be read.
    """
    namespace = engine.namespace if isinstance(engine, Target) else "default"
    client = Client(engine.address, namespace=namespace, codec=BYTES, timeout=engine.patience)
    client.connection = _OneAttempt(
        Endpoint(
            target=engine.address,
            timeout=engine.patience,
            credentials=credentials_of(engine),
            jitter=random.random,
        )
    )
    client.jobs.connection = client.schedules.connection = client.connection
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
