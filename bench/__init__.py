"""Measures what the engine costs, compared with a relay that does the same without a database.

`python -m bench` runs the engine, its PostgreSQL, a streaming and a unary processor, a relay, a
client and a driver that uses PostgreSQL without an engine, each in a process of its own on this
machine (`setup`, `parts`). It runs each question (`catalogue`; `questions`, one per file, with the
question in the first line) and prints lines of JSON and a table (`report`). With `--out` it draws
plots (`plots`); `bench.readme` writes the figures into docs/development/benchmarks.md.

Relay and engine take turns within every question, so that a ratio holds on a busy machine too. The
median of the turns is reported; the spread is the range of the turns. The suffix of a name says how
the parts communicate: none for unary calls on both hops, `_stream` for a streaming processor,
`_session` for a client session as well.
"""
