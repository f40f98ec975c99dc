"""What `bench.compare` measures, of progressor and of Restate.

`restate` finds Restate and runs it; `questions` asks both in alternating turns; `table` shows what
came of it. Restate's server, handlers and client are processes of `bench.parts` as progressor's
own, so that an order, a turn and a count of CPU mean the same on both sides.
"""
