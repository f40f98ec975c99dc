"""How many messages a second can steps send to 1,000 processes, beside notifies by clients?"""

import time

from bench.env import SESSION, Env, turn_of
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.questions.quiet import until_quiet, until_reached
from bench.questions.rounds import processes

_PROCESS_COUNT = 1000
_MESSAGE_COUNT = 4_000
_WARM_UP_SHARE = 0.1
_PER_STEP = {"messages_1": 1, "messages_100": 100}
_NOTIFIES = "messages_0"  # The same steps of receivers, without messages.
NAMES = (_NOTIFIES, *_PER_STEP)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Let notifies by session make steps that send messages, 4,000 in all.

    Until the last message is applied; the steps that send are part of the time and of the cost.
    `ratio_to_notify` compares with as many notifies by session that send nothing.
    """
    senders = pace.count(_PROCESS_COUNT, least=64)
    prefix = await processes(env, SESSION, senders + max(_PER_STEP.values()))
    order = {"what": "notify", "prefix": prefix, "distinct": senders}
    ways = {_NOTIFIES: 0, **_PER_STEP}
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    for number in range(pace.turns + 1):
        messages = _MESSAGE_COUNT if number else round(_WARM_UP_SHARE * _MESSAGE_COUNT)
        for name, per_step in ways.items():
            count = pace.count(messages // max(per_step, 1), least=1 if per_step else 100)
            turn = await _turn(name, {**order, "count": count}, per_step, env)
            if number:  # The first warms up.
                turns[name].append(turn)
    notifies = turns[_NOTIFIES]
    return [
        summed_up(name, own, ratio_to_notify=round(ratio(own, notifies), 3))
        if own is not notifies
        else summed_up(name, own)
        for name, own in turns.items()
        if pace.wants(name)
    ]


async def _turn(name: str, order: dict[str, object], per_step: int, env: Env) -> Turn:
    processor = env.processor(SESSION)
    before = (await processor.ask())["answers"]
    plan = {"plan": "x", "number": per_step} if per_step else {}
    begun = time.monotonic()
    async with env.measured(name) as stretch:
        answers = await env.ask({**order, **plan}, SESSION)
        sent = sum(answer["done"] for answer in answers)
        await until_reached(processor, "answers", before + sent * (1 + per_step))
        seconds = time.monotonic() - begun
    await until_quiet(processor)
    done = sent * max(per_step, 1)
    times = turn_of(stretch, answers).curve
    return stretch.turn(count=done, seconds=seconds, times_ms=times)
