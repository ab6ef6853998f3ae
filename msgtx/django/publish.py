"""Messages that are atomic with the rows of Django's models."""

from datetime import datetime
from types import EllipsisType
from typing import Any

from django.db import connections, transaction

from msgtx import orm
from msgtx.django.database import alias
from msgtx.rules.record import GivenHeaders
from msgtx.units import Duration


def publish(
    topic: str,
    value: bytes | EllipsisType | None = ...,
    *,
    json: Any = ...,
    key: bytes | None = None,
    partition: int | None = None,
    timestamp: int | datetime | None = None,
    headers: GivenHeaders | None = None,
    deliver_at: int | datetime | None = None,
    delay_ms: Duration | None = None,
    using: str | None = None,
) -> None:
    """Publish a record with the `atomic()` block that this is in, savepoints included; outside of one, at once.

    `using`: the alias of a database; by default the one that MSGTX names. The rest as in `msgtx.orm.publish`. If it raises,
    the block is rolled back.
    """
    name = alias() if using is None else using
    with transaction.atomic(using=name, savepoint=False):
        orm.publish(
            connections[name],
            topic,
            value,
            json=json,
            key=key,
            partition=partition,
            timestamp=timestamp,
            headers=headers,
            deliver_at=deliver_at,
            delay_ms=delay_ms,
        )
