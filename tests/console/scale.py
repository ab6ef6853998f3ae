"""`python -m tests.console.scale`: how long each page takes with 10,000 partitions, 5,000 groups and 100,000 transactions.

It fills a server of its own through SQL, as the calls of so many clients would leave it, prints the median of some looks at
each page, and fails if the page of 10,000 partitions takes longer than it may. `--only PATTERN`: only pages like that.
"""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

import psycopg
from starlette.testclient import TestClient

import msgtx
from msgtx import console
from tests.benchmarks.sweeping import own_server

PARTITIONS: Final = 10_000
GROUPS: Final = 5_000
TRANSACTIONS: Final = 100_000
MEMBERS: Final = 500
OPEN: Final = 100
LARGE: Final = 50  # records of a megabyte
MOST_MS: Final = {"topic?name=wide": 300.0, "transactions": 200.0}  # on an idle machine of two cores
PAGES: Final = (
    "overview",
    "topics",
    "topic?name=wide",
    "topic?name=wide&sort=-held",
    "partition?topic=busy",
    "partition?topic=wide",
    "messages?topic=wide",
    "messages?topic=busy",
    "messages?topic=large",
    "transactions",
    "transactions?state=CompleteCommit",
    "transactions?filter=scale-0999&sort=-transactional_id",
    "transactions?state=Ongoing",
    "transaction?id=scale-000001",
    "transaction?id=scale-099999",
    "producer?id=scale-099999",
    "groups",
    "groups?sort=-members",
    "group?name=everything",
    "group?name=group-0001",
    "shares",
    "cuts",
    "cut?name=before",
    "difference?start=before",
    "database",
    "search?q=scale-000001",
)
# Each transaction wrote a batch of ten records; the last ones are open, behind the others.
FILL: Final = (
    """insert into msgtx.producer (producer_id, epoch, transactional_id, timeout_ms, initialized_at, shard)
        select n, 0, format('scale-%s', lpad(n::text, 6, '0')), 900000, now(), n % 50 from generate_series(0, {last}) n""",
    """insert into msgtx.transaction (producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,
            database_backend)
        select n, 0, 0, now(), 86400000, 0 from generate_series(0, {last}) n""",
    """insert into msgtx.record_batch (partition_id, base_offset, last_offset, producer_id, producer_epoch,
            transaction_number, base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size, "values")
        select {first} + n % {partitions}, 10 * (n / {partitions}), 10 * (n / {partitions}) + 9, n, 0, 0, 0, 9, now(),
               (extract(epoch from now()) * 1000)::bigint, 10, 500, array_fill('a value of a record'::bytea, array[10])
        from generate_series(0, {last}) n""",
    """insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,
            decided_by, partitions, first_offsets, last_offsets)
        select n, 0, 0, case n % 10 when 0 then 'ABORT' else 'COMMIT' end, now(), 'producer',
               array[{first} + n % {partitions}], array[10 * (n / {partitions})], array[10 * (n / {partitions}) + 9]
        from generate_series(0, {last} - {open}) n""",
    """insert into msgtx.transaction_marker (partition_id, producer_id, producer_epoch, transaction_number, outcome,
            first_offset, last_offset)
        select {first} + n % {partitions}, n, 0, 0, case n % 10 when 0 then 'ABORT' else 'COMMIT' end,
               10 * (n / {partitions}), 10 * (n / {partitions}) + 9 from generate_series(0, {last} - {open}) n""",
    """insert into msgtx.transaction_partition (producer_id, producer_epoch, transaction_number, partition_id, first_offset)
        select n, 0, 0, {first} + n % {partitions}, 10 * (n / {partitions})
        from generate_series({last} - {open} + 1, {last}) n""",
    """insert into msgtx.partition_floor (partition_id, stable_floor)
        select {first} + n, case when n > {partitions} - 1 - {open} then 90 else 100 end
        from generate_series(0, {partitions} - 1) n""",
    "insert into msgtx.consumer_group (name) values ('everything')",
    """insert into msgtx.consumer_group (name)
        select format('group-%s', lpad(n::text, 4, '0')) from generate_series(1, {groups}) n""",
    """insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, committed_at)
        select g.group_id, {first} + n, nextval('msgtx.commit_sequence'), n % 100, now()
        from msgtx.consumer_group g, generate_series(0, {partitions} - 1) n where g.name = 'everything'""",
    """insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, committed_at)
        select g.group_id, p.partition_id, nextval('msgtx.commit_sequence'), g.group_id % 100, now()
        from msgtx.consumer_group g
        cross join lateral (values ({busy}), ({first} + g.group_id)) p(partition_id) where g.name <> 'everything'""",
    """insert into msgtx.group_member (group_id, member_id, client_host, client_process, session_timeout_ms, topics,
            joined_at, topics_version)
        select g.group_id, format('member-%s', n), 'host', n, 3600000, '{{wide}}', now(), 0
        from msgtx.consumer_group g, generate_series(1, {members}) n where g.name = 'everything'""",
    """insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)
        select m.member_number, 1, now() from msgtx.group_member m""",
    """insert into msgtx.group_assignment (group_id, partition_id, owner, owner_since, target)
        select m.group_id, {first} + n, m.member_number, 0, m.member_number
        from (select m.*, row_number() over () - 1 as place from msgtx.group_member m) m
        cross join generate_series(0, {partitions} - 1) n where n % {members} = m.place""",
    "vacuum analyze",
)


def fill(url: str, client: msgtx.Client) -> None:
    """Make the data. What the pages do not look at is left out."""
    for name, partitions in (("wide", PARTITIONS), ("busy", 1), ("large", 1)):
        client.topics.create(name, partitions)
    with client.producer(batch_bytes=1_100_000) as producer:
        for _ in range(100):
            producer.send("busy", b"a value")
        for _ in range(LARGE):
            producer.send("large", b"x" * 1_000_000)
    for number in range(20):
        client.admin.shares.configure(f"share-{number}", {})
    with psycopg.connect(url, autocommit=True) as connection:
        ids = dict(
            connection.execute(
                "select t.name, min(p.partition_id) from msgtx.topic t join msgtx.partition p using (topic_id) group by 1"
            ).fetchall()
        )
        numbers = {
            "first": ids["wide"],
            "busy": ids["busy"],
            "partitions": PARTITIONS,
            "groups": GROUPS - 1,
            "members": MEMBERS,
            "last": TRANSACTIONS - 1,
            "open": OPEN,
        }
        for statement in FILL:
            began = time.monotonic()
            connection.execute(statement.format(**numbers))
            print(f"# {time.monotonic() - began:6.1f} s  {' '.join(statement.split())[:60]}", flush=True)  # noqa: T201
    client.snapshots.save("before", client.snapshots.take().snapshot)


def median_ms(look: Callable[[], object], times: int) -> float:
    """Return the median of some looks, without the first one."""
    look()
    found = []
    for _ in range(times):
        began = time.monotonic()
        look()
        found.append((time.monotonic() - began) * 1_000)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.console.scale", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    with own_server() as url, msgtx.connect(url, create=True) as client:
        fill(url, client)
        slow = []
        with TestClient(console.app(client, sign_in=False), base_url="http://127.0.0.1:8123") as browser:
            for page in PAGES:
                if not re.search(asked.only, page):
                    continue
                answer = browser.get(f"/{page}")
                took = median_ms(lambda page=page: browser.get(f"/{page}"), asked.times)
                print(f"{took:8.0f} ms  {answer.status_code}  {len(answer.text):9,} letters  {page}", flush=True)  # noqa: T201
                if answer.status_code != 200 or took > MOST_MS.get(page, float("inf")):
                    slow.append(page)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
