"""Makes text from outside safe for a terminal: names, payloads, errors, anything sent to an engine.

A control character in it could move the cursor, clear the screen, set the window's title or forge a
line of the log; an override of the writing direction could show it in another order.
"""


def printable(text: str) -> str:
    """Return `text` as one line that controls no terminal, character for character.

    What is not printable (line ends, C0 and C1 controls, format characters, lone surrogates)
    becomes a space. Each character keeps its position, so that styles that go by positions stay
    right.
    """
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else " " for it in text)
