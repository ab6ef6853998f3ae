"""Coordinators: the leader of each shard, its epoch and lease (internals: coordinator#shards-and-leases)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from msgtx import errors
from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array
from msgtx.generated import calls
from msgtx.store.append.append import epoch_ms
from msgtx.types import Coordinator

SHARDS: Final = 50


@dataclass(frozen=True, slots=True)
class Leases:
    """A coordinator's lease: its id, and the coordinator epoch of each of its shards."""

    coordinator_id: int
    epochs: Mapping[int, int]
    lease_ms: int
    look_again_ms: int  # when to ask again: at a third of the lease, or when another's ends before
    sweep_interval_ms: int


LED: Final = {"shards": "int4[]", "epochs": "int4[]"}  # arguments of functions that a coordinator calls for its shards


def led(leases: Leases | None) -> tuple[Int4Array | None, Int4Array | None]:
    """Return the arguments `LED`; without leases the call is for all shards, in no coordinator's name."""
    return (None, None) if leases is None else (Int4Array(leases.epochs), Int4Array(leases.epochs.values()))


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as it stands; without a living lease it has no owner."""

    shard: int
    epoch: int
    owner: int | None
    host: str | None
    process: int | None
    started_at: datetime | None
    lease_until: datetime | None


def lease_shards(connection: RawConnection, coordinator_id: int | None, *, host: str, process: int) -> Leases:
    """Renew a coordinator's lease, or begin one, and take its share of the shards."""
    ((found, shards, epochs, *times),) = call(connection, calls.LEASE_SHARDS, coordinator_id, host, process)
    return Leases(found, dict(zip(shards, epochs, strict=True)), *times)


def release_shards(connection: RawConnection, coordinator_id: int) -> None:
    """End a coordinator's lease: its shards are free at once."""
    call(connection, calls.RELEASE_SHARDS, coordinator_id)


def list_shards(connection: RawConnection) -> list[Shard]:
    """Return all shards, in order."""
    return [_shard(row) for row in call(connection, calls.LIST_COORDINATORS, None)]


def find_coordinator(connection: RawConnection, transactional_id: str) -> Coordinator:
    """Return the leader of the shard of a transactional id. Raise `CoordinatorNotAvailable` without a living lease."""
    (row,) = call(connection, calls.FIND_COORDINATOR, transactional_id)
    found = _shard(row)
    if found.owner is None or found.host is None or found.process is None or found.lease_until is None:
        raise errors.CoordinatorNotAvailable(
            f"no coordinator leads shard {found.shard} now; run `msgtx coordinator run`, or `msgtx sweep` from cron"
        )
    until = epoch_ms(found.lease_until)
    return Coordinator(found.shard, found.owner, found.host, found.epoch, until, found.process)


def ranges(numbers: list[int]) -> str:
    """Return ascending numbers as people write them: `0-24, 30`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _shard(row: tuple[Any, ...]) -> Shard:
    shard, owner, host, process, epoch, started_at, lease_until = row
    return Shard(shard, epoch, owner, host, process, started_at, lease_until)
