"""Hours of work at half load: does the engine keep its rate, its memory and its sizes?

`python -m bench.soak` has processes live whole lives (`lives`): started, called twice, woken by a
timer, stepping on by themselves, finished, and deleted by retention. It measures how many lives a
second there can be at most, lets a share of that come at a constant rate, looks at everything each
few seconds (`samples`), and judges in the end (`verdict`).
"""
