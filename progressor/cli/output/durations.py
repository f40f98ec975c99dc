"""Durations as text: 1d, 1h30m, 1.5s, 20ms; options accept these forms from a second on."""

import datetime as dt

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))
_SECOND = dt.timedelta(seconds=1)
_MILLISECOND = dt.timedelta(milliseconds=1)


def duration_text(duration: dt.timedelta) -> str:
    """Return a duration as text, to the millisecond."""
    if duration < dt.timedelta():
        return f"-{duration_text(-duration)}"
    milliseconds = round(duration / _MILLISECOND)
    if milliseconds < _SECOND / _MILLISECOND:
        return f"{milliseconds}ms" if milliseconds else "0s"
    seconds, rest = divmod(milliseconds, 1000)
    found = ""
    for unit, length in _UNITS:
        count, seconds = divmod(seconds, length)
        found += f"{count}{unit}" if count else ""
    left = f"{seconds}.{rest:03d}".rstrip("0").rstrip(".") if rest else str(seconds)
    return f"{found}{left}s" if left != "0" else found
