"""What the engine costs, each question beside a relay that does the same without a database.

`python -m bench` puts the engine, its PostgreSQL, a processor that streams and one that does not, a
relay, a client and a driver of PostgreSQL alone into operating system processes of their own on
this machine (`setup`, `parts`), asks each question (`catalogue`; `questions`, one file each, the
question in its first line), and prints lines of JSON and a table (`report`); with `--out` it draws
(`plots`), and `bench.readme` writes the figures into docs/development/benchmarks.md.

Relay and engine take turns within every question, so a ratio holds on a busy machine too; what is
reported is the median of the turns, and the spread says how far they lie apart. The names of the
answers end in how the parts talk: nothing for unary calls on both hops, `_stream` for a streaming
processor, `_session` for a client's session as well.
"""
