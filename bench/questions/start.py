"""How many processes can 64 callers start in a second, each with one event?"""

from bench.measurement import Measurement, Pace
from bench.questions.side_by_side import side_by_side
from bench.stage import Stage


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Start new processes."""
    return [await side_by_side("start", stage, pace, {"what": "start"})]
