"""Settings of topics and share groups, as an administrator gives them."""

from collections.abc import Mapping

from msgtx import units
from msgtx.arguments import shown
from msgtx.declared.settings import Kind, Setting, Settings
from msgtx.errors import ConfigError


def read_settings(subject: str, table: Settings, given: Mapping[str, object]) -> dict[str, object]:
    """Return settings with their durations in milliseconds and their sizes in bytes. Raise `ConfigError`."""
    known = {one.name: one for one in table}
    for name in given:
        if not isinstance(name, str):
            raise ConfigError(f"the name of a setting is a text, not {shown(name)}")
        if name not in known:
            raise ConfigError(f"unknown {subject} setting {name!r}; known are {', '.join(known)}", name=name)
    return {name: _value(known[name], value) for name, value in given.items()}


def _value(one: Setting, value: object) -> object:
    if one.kind is Kind.DURATION:
        return units.milliseconds(one.name, value)
    if one.kind is Kind.SIZE:
        return units.size(one.name, value)
    if one.kind is Kind.NUMBER:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(f"{one.name} is a whole number, not {shown(value)}", name=one.name)
    elif not isinstance(value, str) and (value is not None or one.default is not None):
        raise ConfigError(f"{one.name} is a word, not {shown(value)}", name=one.name)
    return value
