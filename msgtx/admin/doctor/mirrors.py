"""Mirrors whose target this is: one that stands still."""

from collections.abc import Iterator

from msgtx.admin.doctor.findings import Look, data_of, more_of, span
from msgtx.store.mirrors import describe_mirrors
from msgtx.types import Finding, Level


def standing_still(look: Look) -> Iterator[Finding]:
    """Find mirrors whose process is gone, or whose progress does not move though their source has more."""
    limit = look.limits.stalled_seconds * 1000
    found = [
        each
        for each in describe_mirrors(look.connection)
        if each.seen_ms > limit or (each.lag_records > 0 and each.moved_ms > limit)
    ]
    for each in found[: look.most]:
        where = f"process {each.client_process} on {each.client_host}"
        if each.seen_ms > limit:
            text = f"{where} was last heard of {span(each.seen_ms / 1000)} ago, {each.lag_records} records behind its source"
            advice = f"start it again; if it is over, `msgtx mirror reset {each.name}`"
        else:
            text = (
                f"its progress has not moved for {span(each.moved_ms / 1000)}, {each.lag_records} records behind its source"
            )
            advice = f"look at the log of {where}"
        yield Finding(Level.WARNING, f"mirror {each.name}", text, advice, data_of(each))
    yield from more_of(len(found), found[: look.most], "mirrors", "mirrors stand still")
