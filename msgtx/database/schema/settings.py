"""Limits of the installation, in table `msgtx.setting`: for its owner to see and to change."""

import difflib

from sqlalchemy import Connection, text

from msgtx.errors import ConfigError


def read_limits(connection: Connection) -> dict[str, int]:
    """Return the settings by name."""
    rows = connection.execute(text("select name, value from msgtx.setting order by name"))
    return {row.name: row.value for row in rows}


def change(connection: Connection, name: str, *, value: int) -> None:
    """Change a setting, for all clients, from the next call on. Raise `ConfigError` for a wrong name or value."""
    if value <= 0:
        raise ConfigError(f"{name} must be above 0, not {value}", name=name, limit=0)
    changed = connection.execute(
        text("update msgtx.setting set value = :value where name = :name"), {"name": name, "value": value}
    )
    if changed.rowcount == 0:
        near = difflib.get_close_matches(name, read_limits(connection), n=1, cutoff=0.0)
        raise ConfigError(f"unknown setting {name!r}; the nearest known one is {near[0]!r}", name=name)
