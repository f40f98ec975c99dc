"""The handlers that Restate calls: a virtual object, which does what the bench's processor does.

They are served over HTTP/2, so that an invocation is one stream both ways, by Granian: it gave 619
to 1,039 starts a second, Hypercorn, which Restate's examples use, 181 to 282 (2026-11-28, 64
callers on two busy cores).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import restate
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server
from restate.serde import BytesSerde

from bench.parts import orders, plans
from bench.parts.percentiles import curve

SERVICE = "bench"
CONTENT_TYPE = "application/octet-stream"

_EVENT = b"e" * plans.SIZE
_RESPONSE = b"r" * 16
_BYTES = BytesSerde()

_Handler = Callable[[restate.ObjectContext, bytes], Awaitable[bytes]]


class _Handlers:
    """Answers as the processor's plans do, each event a value of the object's state; and counts."""

    def __init__(self) -> None:
        self.answer_count = 0
        self.step_count = 0
        self.halted = False
        self.times: list[float] = []
        """How long after the step before it each step of an object came."""
        self._stepped_at: dict[str, float] = {}
        self._object = restate.VirtualObject(SERVICE)
        self._bind(self.start)
        self._bind(self.call)
        self._bind(self.steps)
        self._message = self._bind(self.message)

    def app(self) -> Any:  # noqa: ANN401  an ASGI application
        return restate.app(services=[self._object], protocol="bidi")

    async def start(self, ctx: restate.ObjectContext, args: bytes) -> bytes:
        del args
        self.answer_count += 1
        ctx.set("event", _EVENT, serde=_BYTES)
        return _RESPONSE

    async def call(self, ctx: restate.ObjectContext, args: bytes) -> bytes:
        return await self.start(ctx, args)

    async def message(self, ctx: restate.ObjectContext, args: bytes) -> bytes:
        """Step once for each message, and send the next message to itself."""
        response = await self.start(ctx, args)
        if self._stepped(ctx.key()):
            ctx.object_send(self._message, ctx.key(), args)
        return response

    async def steps(self, ctx: restate.ObjectContext, args: bytes) -> bytes:
        """Step on within one invocation, which journals each step."""
        del args
        key = ctx.key()

        async def step() -> bytes:
            self.answer_count += 1
            return _EVENT if self._stepped(key) else b""

        # What ends the loop is in the journal, so that a replay ends where the run did.
        while await ctx.run_typed("step", step, restate.RunOptions(serde=_BYTES)):
            pass
        return _RESPONSE

    async def obey(self, order: dict[str, Any]) -> orders.Answer:
        """Return the counts; `halted` stops or resumes steps."""
        self.halted = bool(order.get("halted", self.halted))
        if order.get("forget"):
            self.times.clear()
            self._stepped_at.clear()
        return {
            "at": time.monotonic(),
            "answers": self.answer_count,
            "steps": self.step_count,
            "curve": curve(self.times),
        }

    def _bind(self, handler: _Handler) -> Any:  # noqa: ANN401  what object_send names it by
        return self._object.handler(
            accept=CONTENT_TYPE, content_type=CONTENT_TYPE, input_serde=_BYTES, output_serde=_BYTES
        )(handler)

    def _stepped(self, key: str) -> bool:
        """Count a step, and return whether there is to be another."""
        now, before = time.monotonic(), self._stepped_at.get(key)
        self._stepped_at[key] = now
        if before is not None:
            self.step_count += 1
            self.times.append(now - before)
        return not self.halted


async def _main() -> None:
    handlers = _Handlers()
    (port,) = orders.free_ports(1)
    server = Server(
        handlers.app(), address="127.0.0.1", port=port, interface=Interfaces.ASGINL,
        http=HTTPModes.http2, websockets=False, log_enabled=False,
    )  # fmt: skip
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(), name="handlers")
        orders.tell({"address": f"127.0.0.1:{port}"})
        await orders.obey(handlers.obey)
        server.stop()


if __name__ == "__main__":
    orders.run(_main())
