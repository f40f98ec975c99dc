"""Makes external text safe for a terminal: names, payloads, errors, anything sent to an engine.

A control character could move the cursor, clear the screen, set the window's title or forge a log
line; an override of the writing direction could show text in another order.
"""


def printable(text: str) -> str:
    """Return `text` on one line, with a space for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else " " for it in text)
