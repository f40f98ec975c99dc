"""Values as TOML writes them."""

import re

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: object) -> str:
    """Return a value as TOML writes it, on one line of printable characters."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case list():
            return f"[{', '.join(map(toml_value, value))}]"
        case dict():
            pairs = (f"{toml_key(key)} = {toml_value(it)}" for key, it in value.items())
            return f"{{{', '.join(pairs)}}}"
        case _:
            return f'"{"".join(map(_escaped, str(value)))}"'


def toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\U{ord(character):08X}"
