"""How long do requests wait at a constant rate, at 50 and 80 % of the maximum?"""

from bench.env import SESSION, STREAM, Env, Variant
from bench.measurement import Measurement, Pace, summed_up
from bench.questions.quiet import until_quiet
from bench.questions.rounds import processes

_PROCESS_COUNT = 1000
_WHATS = ("start", "call", "notify", "get")
_SHARES = (50, 80)
_VARIANTS = (("", STREAM), ("_session", SESSION))


def _name(what: str, suffix: str, share: int) -> str:
    return f"{what}{suffix}_open_{share}"


NAMES = tuple(
    _name(what, suffix, share)
    for what in _WHATS
    for suffix, _ in _VARIANTS
    for share in _SHARES
)  # fmt: skip


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Measure the closed loop first, then send at a share of its rate.

    Times count from when a request was due to be sent, so that none is left out because an earlier
    one was slow.
    """
    answered = []
    for what in _WHATS:
        for suffix, variant in _VARIANTS:
            names = {
                share: name for share in _SHARES if pace.wants(name := _name(what, suffix, share))
            }
            if names:
                answered += await _measure(what, names, variant, env, pace)
    return answered


async def _measure(
    what: str, names: dict[int, str], variant: Variant, env: Env, pace: Pace
) -> list[Measurement]:
    count = pace.count(_PROCESS_COUNT, least=64)
    order: dict[str, object] = {"what": what}
    if what != "start":
        prefix = await processes(env, variant, count, events=10)
        order |= {"prefix": prefix, "distinct": count}
    processor = env.processor(variant)
    closed = await env.turn("", {**order, "seconds": pace.seconds / 2}, variant)
    answered = []
    for share, name in names.items():
        await until_quiet(processor)
        rate = closed.ops_per_s * share / 100
        fresh = {**order, "prefix": env.prefix()} if what == "start" else order
        turn = await env.turn(
            name, {**fresh, "seconds": pace.seconds, "rate": max(rate, 1.0)}, variant
        )
        answered.append(
            summed_up(
                name,
                [turn],
                rate_wanted=round(rate, 1),
                closed_ops_per_s=round(closed.ops_per_s, 1),
                curve_ms=[round(ms, 3) for ms in turn.curve],
            )
        )
    await until_quiet(processor)
    return answered
