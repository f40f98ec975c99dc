"""Actors: processes that do many things at once, and are judged by their own records.

Each client owns one actor at a time: it starts it, sends it requests, waits for its end, and ends
it (``client.py``). A request carries an order (``orders.py``) that says what its step does: set and
unset named timers, send messages to other actors, use ``step.once``, take longer than a step may.
``steps.py`` obeys, and notes on a file outside the engine what it was asked and what it ran.
``records.py`` reads what is left of all this, ``judge.py`` says what is wrong with it. Start
reading at ``judge.py``.
"""
