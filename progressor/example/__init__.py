"""Examples that ``progressor dev`` plays; they import ``sdk`` alone, as users do.

Start with ``order``, a whole processor; then ``scenario``, what a client does with it. ``rollout``
has gates, ``nine`` and ``mapreduce`` jobs, ``nightly`` a schedule, each with a scenario beside it.
"""
