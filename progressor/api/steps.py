"""StepService: what a step asks for while it runs, if its processor is asked by unary calls."""

import dataclasses
import datetime as dt
from typing import Annotated

from progressor.api.calls.servicer import Servicer, reading
from progressor.api.calls.traces import CallContext
from progressor.api.calls.validation import Key, check_id
from progressor.domain.processes.memo import StepLease
from progressor.v1 import step_service_pb2 as pb
from progressor.wire import fields as wire
from progressor.wire.shapes import Field, Shape, between

_Number = Annotated[int, Field(given=True, check=between(1, 2**63 - 1))]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A request under the lease of a step."""

    key: Key
    task_id: _Number
    token: _Number

    @property
    def lease(self) -> StepLease:
        return StepLease(key=self.key, task_id=self.task_id, token=self.token)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Memo(Leased):
    memo_key: Annotated[str, Field(name="key", check=check_id, given=True)]
    value: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Extension(Leased):
    by: Annotated[dt.timedelta, Field(given=True)]


remember_from_wire = Shape(Memo, pb.RememberRequest).read
extend_from_wire = Shape(Extension, pb.ExtendRequest).read


class StepServicer(Servicer):
    service = pb.DESCRIPTOR.services_by_name["StepService"]

    @reading(remember_from_wire)
    async def remember(self, memo: Memo, _: CallContext) -> pb.RememberResponse:
        steps = self._backend().running_steps
        earlier = await steps.remember(memo.lease, memo.memo_key, memo.value)
        return pb.RememberResponse(earlier_value=earlier)

    @reading(extend_from_wire)
    async def extend(self, extension: Extension, _: CallContext) -> pb.ExtendResponse:
        steps = self._backend().running_steps
        left = await steps.extend(extension.lease, extension.by)
        response = pb.ExtendResponse()
        wire.fill_timestamp(response.deadline, steps.deadline_in(left))
        return response
