"""The relay: the engine's two unary hops, client to relay to processor, without a database.

Its requests to the processor are as large as the engine's.
"""

import itertools
import sys
from typing import Any

import grpc
from google.protobuf import timestamp_pb2

from bench.parts import orders
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import (
    process_service_pb2_grpc,
    processor_service_pb2,
    processor_service_pb2_grpc,
    types_pb2,
)


class _Relay(process_service_pb2_grpc.ProcessServiceServicer):
    """Forwards Start and Call."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._processor = processor_service_pb2_grpc.ProcessorServiceStub(channel)
        self._task_ids = itertools.count(1_000_000)

    async def Start(  # noqa: N802  the RPC's name
        self, request: pb.StartRequest, context: object
    ) -> pb.StartResponse:
        del context
        task_id, answer = await self._forward(request, types_pb2.TASK_TYPE_INIT)
        return pb.StartResponse(task_id=task_id, response=answer.response)

    async def Call(  # noqa: N802  the RPC's name
        self, request: pb.CallRequest, context: object
    ) -> pb.CallResponse:
        del context
        task_id, answer = await self._forward(request, types_pb2.TASK_TYPE_CALL)
        return pb.CallResponse(task_id=task_id, response=answer.response)

    async def _forward(
        self, request: pb.StartRequest | pb.CallRequest, task_type: types_pb2.TaskType.ValueType
    ) -> tuple[int, processor_service_pb2.ProcessResponse]:
        task_id = next(self._task_ids)
        now = timestamp_pb2.Timestamp()
        now.GetCurrentTime()
        is_init = task_type == types_pb2.TASK_TYPE_INIT
        status = types_pb2.PROCESS_STATUS_INIT if is_init else types_pb2.PROCESS_STATUS_RUNNING
        forwarded = processor_service_pb2.ProcessRequest(
            process=types_pb2.Process(
                namespace=request.namespace,
                process_id=request.process_id,
                status=status,
                created_at=now,
                status_changed_at=now,
            ),
            task=processor_service_pb2.ProcessorTask(
                task_id=task_id,
                type=task_type,
                args=request.args,
                attempt=1,
                token=task_id,
                scheduled_at=now,
            ),
            deadline=now,
        )
        return task_id, await self._processor.Process(forwarded, timeout=orders.SECONDS_MAX)


async def _obey(order: dict[str, Any]) -> orders.Answer:
    return order


async def _main() -> None:
    server = grpc.aio.server(options=orders.SERVER_OPTIONS)
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        relay = _Relay(channel)  # type: ignore[abstract]  # its other methods are UNIMPLEMENTED
        process_service_pb2_grpc.add_ProcessServiceServicer_to_server(relay, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        orders.tell({"address": f"127.0.0.1:{port}"})
        await orders.obey(_obey)
        await server.stop(None)


if __name__ == "__main__":
    orders.run(_main())
