"""A neighbour of the attack: calls its own processes all the time, and writes how long it took.

The arguments are the address of the engine, the file with the token, and the file to write:
a line for each call, with the instant of the monotonic clock and the milliseconds, or -1 for a
call that failed.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import TextIO

from progressor.sdk import Client, NamespaceConfig, Processor, running

NAMESPACE = "neighbour"
_CALLERS = 4
_PAUSE_SECONDS = 0.04


def answering(namespace: str) -> Processor[int]:
    """Return a processor that answers as it should."""
    processor = Processor(namespace, state=int)

    @processor.init
    async def _begin(_step: object) -> None: ...

    @processor.call
    async def _answer(_step: object) -> str:
        return "here"

    return processor


async def _main(address: str, token: Path, out: Path) -> None:
    async with (
        running(answering(NAMESPACE), bind="127.0.0.1:0") as own,
        Client(address, namespace=NAMESPACE, token=token) as client,
    ):
        await client.namespaces.create(NamespaceConfig(name=NAMESPACE, processor_targets=(own,)))
        with out.open("w", buffering=1) as file:
            async with asyncio.TaskGroup() as group:
                for number in range(_CALLERS):
                    group.create_task(_call(client, f"n-{number}", file))


async def _call(client: Client, process_id: str, file: TextIO) -> None:
    await client.start(process_id)
    while True:
        begun = time.monotonic()
        try:
            answer = await client.call(process_id)
            taken = 1000 * (time.monotonic() - begun) if answer.response == "here" else -1.0
        except Exception as error:  # noqa: BLE001  the verdict counts it
            sys.stderr.write(f"neighbour: {error!r}\n")
            taken = -1.0
        file.write(f"{begun} {taken}\n")
        await asyncio.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
