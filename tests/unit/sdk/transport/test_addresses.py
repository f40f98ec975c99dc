"""Addresses that gRPC takes for others are refused by the SDK."""

import pytest

from progressor.sdk import Client, Processor, SyncClient
from progressor.sdk.processor.server import running

WRONG = ["127.0.0.1:99999999", "[::1]:65536", "localhost", "[::1]", ""]


@pytest.mark.parametrize("address", WRONG)
def test_a_client_refuses_an_address_without_a_port_that_exists(address: str) -> None:
    for kind in (Client, SyncClient):
        with pytest.raises(ValueError, match="port"):
            kind(address)


@pytest.mark.parametrize("address", WRONG)
async def test_a_processor_refuses_to_listen_at_such_an_address(address: str) -> None:
    with pytest.raises(ValueError, match="port"):
        async with running(Processor("orders"), bind=address):
            pass


@pytest.mark.parametrize(
    "address", ["localhost:65535", "[::1]:1", "unix:/run/p", "dns:///name:7420", "ipv4:1.2.3.4:5"]
)
def test_a_client_takes_every_form_that_grpc_does(address: str) -> None:
    Client(address)
