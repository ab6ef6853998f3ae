"""Mirrors whose target is this database: `client.admin.mirrors`."""

import builtins

from msgtx import arguments, errors
from msgtx.database.pool import Engine
from msgtx.store.append.append import epoch_ms
from msgtx.store.mirrors import MirrorRow, delete_mirror, describe_mirrors, mirror_places
from msgtx.types import MirrorDescription, MirrorPlace


class MirrorsAdmin:
    """`client.admin.mirrors`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self) -> builtins.list[MirrorDescription]:
        """Return the mirrors that copy to this database, by name."""
        with self._engine.connection() as connection:
            return [_described(row) for row in describe_mirrors(connection)]

    def describe(self, name: str) -> MirrorDescription:
        """Return a mirror, and how far it has copied each partition. Raise `MirrorNotFound`."""
        name = arguments.text("name", name)
        with self._engine.connection() as connection:
            found = describe_mirrors(connection, name)
            if not found:
                raise _unknown(name)
            places = tuple(MirrorPlace(row.topic, row.partition, row.next_offset) for row in mirror_places(connection, name))
        return _described(found[0], places)

    def reset(self, name: str) -> None:
        """Forget a mirror and its progress: the next run begins with the first record of its source.

        Records that are already copied stay, and the next run copies them again: delete the target's topics first. A run of
        this mirror ends with `MirrorFenced`. Raise `MirrorNotFound`.
        """
        name = arguments.text("name", name)
        with self._engine.connection() as connection:
            if not delete_mirror(connection, name):
                raise _unknown(name)


def _described(row: MirrorRow, places: tuple[MirrorPlace, ...] = ()) -> MirrorDescription:
    return MirrorDescription(
        name=row.name,
        source=row.source,
        source_address=row.source_address,
        host=row.client_host,
        process=row.client_process,
        started_at=epoch_ms(row.started_at),
        moved_ms=row.moved_ms,
        seen_ms=row.seen_ms,
        records=row.records,
        lag_records=row.lag_records,
        lag_ms=row.lag_ms,
        places=places,
        error=row.error,
    )


def _unknown(name: str) -> errors.MirrorNotFound:
    return errors.MirrorNotFound(f"there is no mirror {name!r}", name=name)
