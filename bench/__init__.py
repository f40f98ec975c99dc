"""What the engine costs, each question beside a relay that does the same without a database.

`python -m bench` puts the engine, its PostgreSQL, a processor, a relay and a client into operating
system processes of their own on this machine (`stage`), asks each question (`questions`, one file
each, the question in its first line), and prints a table and JSON lines (`report`).

Relay and engine take turns within every question, so a ratio holds on a busy machine too; what is
reported is the median of the turns, and the spread says how far they lie apart.
"""
