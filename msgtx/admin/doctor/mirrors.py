"""Mirrors whose target this is: those that have ended, stand still, or lag."""

from collections.abc import Iterator

from msgtx.admin.doctor.findings import Look, data_of, more_of, span
from msgtx.store.mirrors import describe_mirrors
from msgtx.types import Finding, Level


def ailing(look: Look) -> Iterator[Finding]:
    """Find mirrors that have ended with an error, are no longer heard of, stand still, or lag behind their source."""
    limit = look.limits.stalled_seconds * 1000
    found = [
        each
        for each in describe_mirrors(look.connection)
        if each.error or each.seen_ms > limit or (each.lag_records > 0 and max(each.moved_ms, each.lag_ms) > limit)
    ]
    for each in found[: look.most]:
        where = f"process {each.client_process} on {each.client_host}"
        if each.error:
            text, advice = f"{where} has ended: {each.error}", "docs/operations/mirrors.md says what to do about each error"
        elif each.seen_ms > limit:
            text = f"{where} was last heard of {span(each.seen_ms / 1000)} ago, {each.lag_records} records behind its source"
            advice = f"start it again; if it is over, `msgtx mirror reset {each.name}`"
        elif each.moved_ms > limit:
            text = (
                f"its progress has not moved for {span(each.moved_ms / 1000)}, {each.lag_records} records behind its source"
            )
            advice = f"look at the log of {where}"
        else:
            text = f"it is {span(each.lag_ms / 1000)} and {each.lag_records} records behind its source"
            advice = "it is too slow: raise --rate-limit if it has one, or divide its topics among several mirrors"
        yield Finding(Level.PROBLEM if each.error else Level.WARNING, f"mirror {each.name}", text, advice, data_of(each))
    yield from more_of(len(found), found[: look.most], "mirrors", "mirrors do not keep up")
