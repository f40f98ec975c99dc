"""The processor of the disturbed; a streaming one."""

from bench.disturbing.patient import Patient
from bench.parts import orders
from progressor.sdk import Limits, running

_LIMITS = Limits(steps_max=30_000)


async def _main() -> None:
    patient = Patient()
    async with running(patient, bind="127.0.0.1:0", limits=_LIMITS, streaming=True) as address:
        orders.tell({"address": address})
        await orders.obey(patient.obey)


if __name__ == "__main__":
    orders.run(_main())
