"""Hours at half load: does the engine keep its rate, its memory and its sizes?

`python -m bench.soak` runs processes through whole lives (`lives`): they are started, called twice,
woken by a timer, run steps by themselves, finish, and are deleted by retention. It measures the
maximum rate of lives, starts lives at a share of it, takes samples every few seconds (`samples`),
and judges at the end (`verdict`). With `--short-lives` the functions of the database are called in
place of the engine (`short_lives`): at rates that a client and a processor beside it do not leave
room for.
"""
