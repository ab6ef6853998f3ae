"""The installation: which schema, which incarnation."""

import uuid
from dataclasses import dataclass
from typing import Final

from msgtx.database.engine import Function, RawConnection, call

DESCRIBE: Final = Function("describe_installation", {})


@dataclass(frozen=True, slots=True)
class Installation:
    """What a client compares when it connects."""

    incarnation: uuid.UUID
    schema_version: int
    functions_hash: str | None


def describe_installation(connection: RawConnection) -> Installation:
    """Return the installation's row. Raise `ConfigError` if there is no msgtx schema."""
    ((incarnation, version, functions_hash),) = call(connection, DESCRIBE)
    return Installation(incarnation, version, functions_hash)
