"""Leases: whether every shard has a leader; sweeps: whether they keep up."""

from collections.abc import Iterator

from msgtx.admin.doctor.findings import Look, data_of, more_of, span, words_of_bytes
from msgtx.store.sweeps.coordinators import Shard, list_shards, ranges
from msgtx.store.sweeps.sweeps import LateLog, late_logs
from msgtx.types import Finding, Level

RUN = "`msgtx coordinator run`, or `msgtx sweep` from cron"
WITHOUT = "readers abort what is overdue and holds them back, and clients write their own markers; the rest needs a sweep"


def leases(look: Look) -> Iterator[Finding]:
    """Report the leaders of shards, and find shards without one."""
    shards = list_shards(look.connection)
    owners: dict[int, list[Shard]] = {}
    for shard in shards:
        if shard.owner is not None:
            owners.setdefault(shard.owner, []).append(shard)
    for owner, own in list(owners.items())[: look.most]:
        numbers = [shard.shard for shard in own]
        text = f"process {own[0].process} on {own[0].host} leads {len(own)} shards ({ranges(numbers)})"
        data = {"owner": owner, "host": own[0].host, "process": own[0].process, "shards": numbers}
        yield Finding(Level.INFORMATION, f"coordinator {owner}", text, "", data)
    unled = [shard.shard for shard in shards if shard.owner is None]
    if not unled:
        return
    data = {"shards": unled}
    if not owners and not any(shard.epoch for shard in shards):
        text = f"no coordinator daemon has ever run: {WITHOUT}"
        yield Finding(Level.INFORMATION, "coordinators", text, RUN, data)
    elif not owners:
        text = f"no coordinator leads a shard, and some did: {WITHOUT}"
        yield Finding(Level.WARNING, "coordinators", text, RUN, data)
    else:
        text = (
            f"{len(unled)} shards are led by nobody ({ranges(unled)}): if that lasts longer than a lease, nobody sweeps them"
        )
        yield Finding(
            Level.WARNING, "coordinators", text, "look again; then see why the coordinators do not take them", data
        )


def late(look: Look) -> Iterator[Finding]:
    """Find partitions from which the sweeps remove less than they should."""
    found, total = late_logs(
        look.connection,
        late_ms=round(look.limits.late_seconds * 1_000),
        late_bytes=look.limits.late_bytes,
        most=look.most,
    )
    yield from map(_late, found)
    yield from more_of(total, found, "retention", "partitions are past their retention")


def _late(one: LateLog) -> Finding:
    text = f"its oldest records are {span(one.age_ms / 1_000)} old, and retention_ms is {span(one.retention_ms / 1_000)}"
    if one.bytes is not None and one.bytes > one.retention_bytes:
        text = f"it holds {words_of_bytes(one.bytes)}, and retention_bytes is {words_of_bytes(one.retention_bytes)}"
    advice = (
        f"{RUN}; if one runs, `sweep_max_bytes_per_second` is too low ({words_of_bytes(one.pace)}):"
        f" `msgtx db settings sweep_max_bytes_per_second {2 * one.pace}`"
    )
    return Finding(Level.WARNING, f"retention of {one.topic}-{one.partition_index}", text, advice, data_of(one))
