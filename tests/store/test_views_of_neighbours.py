"""The views once more, in Python, compared on tables with random rows, for the owner and for a role with random rights."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
import sqlalchemy
from psycopg.rows import dict_row

from tests.databases import Connection, Server
from tests.roles import Roles, open_roles
from tests.store.soup import Row, Soup, Tables, named, nth
from tests.store.steps import new_topic

pytestmark = pytest.mark.slow

SEEDS: Final = 150


@dataclass
class Rights:
    """What a role may do by these rows of role_right. `role` None: the owner of the schema."""

    role: str | None
    rows: list[Row]

    def mine(self, resource: str) -> list[Row]:
        return [row for row in self.rows if row["resource"] == resource and row["role_name"] == self.role]

    def topics(self, tables: Tables, *cans: str) -> set[int] | None:
        """The topics on which it has one of these rights; None: all."""
        wider = {*cans, "admin"} if "observe" in cans else set(cans)
        patterns = {row["topic_pattern"] for row in self.mine("topic") if row["can"] in wider}
        if self.role is None or "*" in patterns:
            return None
        return {row["topic_id"] for row in tables.rows["topic"] if row["name"] in patterns}

    def sees(self, tables: Tables, topic: Row, *cans: str) -> bool:
        topics = self.topics(tables, *cans)
        return topics is None or topic["topic_id"] in topics

    def may_use(self, resource: str, name: str | None) -> bool:
        of_all = [row for row in self.rows if row["resource"] == resource]
        everything = self.role is None or any(
            (row["can"], row["topic_pattern"]) == ("admin", "*") for row in self.mine("topic")
        )
        if everything or not of_all:
            return True
        mine = self.mine(resource)
        return any(fits(row, name) for row in mine) if mine else not any(fits(row, name) for row in of_all)


def fits(right: Row, name: str | None) -> bool:
    pattern = right["topic_pattern"]
    return name is not None and (name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern)


# ── the views ──


@dataclass
class Views:
    """What each view shows. Partitions and topics by their ids."""

    tables: Tables
    rights: Rights

    def __post_init__(self) -> None:
        self.topics_by_id = {row["topic_id"]: row for row in self.tables.rows["topic"]}
        self.topic_of = {row["partition_id"]: self.topics_by_id[row["topic_id"]] for row in self.tables.rows["partition"]}

    def _visible(self, partition: int, *cans: str) -> bool:
        return partition in self.topic_of and self.rights.sees(self.tables, self.topic_of[partition], *cans)

    def topics(self) -> Iterator[Row]:
        for topic in self.topics_by_id.values():
            if self.rights.sees(self.tables, topic, "produce", "consume", "observe"):
                partitions = len(self.tables.where("partition", topic_id=topic["topic_id"]))
                yield {"name": topic["name"], "partitions": partitions}

    def record_batches(self) -> Iterator[Row]:
        for row in self.tables.rows["record_batch"]:
            partition = row["partition_id"]
            if self._visible(partition, "consume") and row["last_offset"] >= self.tables.log_start(partition):
                yield {
                    "topic": self.topic_of[partition]["name"],
                    "partition_id": partition,
                    "base_offset": row["base_offset"],
                }

    def committed_batches(self) -> Iterator[Row]:
        for row in self.tables.rows["record_batch"]:
            partition = row["partition_id"]
            if self._visible(partition, "consume") and row["record_count"] > 0 and self._is_committed(row):
                topic, start = self.topic_of[partition]["name"], self.tables.log_start(partition)
                its = {"partition_id": partition, "base_offset": row["base_offset"], "values": row["values"]}
                yield {"topic": topic, "log_start_offset": start, **its}

    def _is_committed(self, row: Row) -> bool:
        if row["transaction_number"] is None:
            return True
        floor = self.tables.floor(row["partition_id"])
        if floor is not None and row["base_offset"] < floor:
            return self.tables.of("transaction_marker", row, partition_id=row["partition_id"], outcome="ABORT") is None
        return self.tables.of("transaction_decision", row, outcome="COMMIT") is not None

    def consumer_groups(self) -> Iterator[Row]:
        for group in self.tables.rows["consumer_group"]:
            its = {"group_id": group["group_id"]}
            known = self.tables.where("group_offset", **its) + self.tables.where("group_assignment", **its)
            if self.tables.one("share_group", **its) is None and self._shows(group, known):
                members = len(self.tables.where("group_member", **its))
                yield {"name": group["name"], "generation": group["generation"], "members": members}

    def share_groups(self) -> Iterator[Row]:
        for share in self.tables.rows["share_group"]:
            its = {"group_id": share["group_id"]}
            (group,) = self.tables.where("consumer_group", **its)
            if self._shows(group, self.tables.where("share_state", **its)):
                yield {"name": group["name"], "members": len(self.tables.where("group_member", **its))}

    def _shows(self, group: Row, known: Iterable[Row]) -> bool:
        """Whether a group is shown that knows these partitions."""
        partitions = {row["partition_id"] for row in known} & self.topic_of.keys()
        if self.rights.topics(self.tables, "observe") is None or any(self._visible(each, "observe") for each in partitions):
            return True
        everywhere = self.rights.topics(self.tables, "consume", "observe") is None
        somewhere = everywhere or any(self._visible(each, "consume", "observe") for each in partitions)
        return somewhere and self.rights.may_use("group", group["name"])

    def _shows_of(self, group: Row, partition: int) -> bool:
        """Whether a row of a group and a partition is shown."""
        may = self.rights.may_use("group", group["name"]) or self._visible(partition, "observe")
        return may and self._visible(partition, "consume", "observe")

    def group_offsets(self) -> Iterator[Row]:
        for row in self.tables.rows["group_offset"]:
            group, partition = self.tables.one("consumer_group", group_id=row["group_id"]), row["partition_id"]
            if group is None or not self._shows_of(group, partition):
                continue
            counts = self._counts(row)
            its = self.tables.where("group_offset", group_id=row["group_id"], partition_id=partition)
            later = any(each["commit_sequence"] > row["commit_sequence"] and self._counts(each) for each in its)
            pending = not counts and self.tables.of("transaction_decision", row) is None
            told = {"commit_sequence": row["commit_sequence"], "counts": counts, "pending": pending}
            where = {"group_name": group["name"], "topic": self.topic_of[partition]["name"], "partition_id": partition}
            yield {**where, **told, "newest": counts and not later}

    def _counts(self, row: Row) -> bool:
        decision = self.tables.of("transaction_decision", row)
        sealed = self.tables.of("transaction_seal", row) is not None
        return not sealed if decision is None else decision["outcome"] == "COMMIT"

    def share_partitions(self) -> Iterator[Row]:
        for group, partition, start in self._known_to_shares():
            newest = max(self.tables.where("share_state", **group["its"], partition_id=partition), key=version)
            parked = list(self._parked(group["its"], partition, start))
            following = max(newest["next_offset"], start)
            count = Counter[str]()
            for first, last, state in parked:
                count[state] += last - first + 1
            begins = min([first for first, _, _ in parked], default=following)
            where = {"group_name": group["name"], "topic": self.topic_of[partition]["name"], "partition_id": partition}
            offsets = {"start_offset": begins, "next_offset": following}
            yield {**where, **offsets, "delayed": count["delayed"], "waiting": count["waiting"], "acquired": 0}

    def share_spans(self) -> Iterator[Row]:
        for group, partition, start in self._known_to_shares():
            for first, last, state in self._parked(group["its"], partition, start):
                where = {"group_name": group["name"], "topic": self.topic_of[partition]["name"], "partition_id": partition}
                yield {**where, "first_offset": first, "last_offset": last, "state": state}

    def _known_to_shares(self) -> Iterator[tuple[dict[str, Any], int, int]]:
        for share in self.tables.rows["share_group"]:
            its = {"group_id": share["group_id"]}
            (group,) = self.tables.where("consumer_group", **its)
            for partition in sorted({row["partition_id"] for row in self.tables.where("share_state", **its)}):
                if self._shows_of(group, partition):
                    yield {"name": group["name"], "its": its}, partition, self.tables.log_start(partition)

    def _parked(self, its: Mapping[str, Any], partition: int, start: int) -> Iterator[tuple[int, int, str]]:
        for row in self.tables.where("share_parked", **its, partition_id=partition):
            if row["last_offset"] >= start:
                state = "waiting" if row["due_at"] is None else "delayed"
                yield max(row["first_offset"], start), row["last_offset"], state

    def transactions(self) -> Iterator[Row]:
        everywhere = self.rights.topics(self.tables, "consume", "observe") is None
        for producer in self.tables.rows["producer"]:
            its, name = {"producer_id": producer["producer_id"]}, producer["transactional_id"]
            opened = max(self.tables.where("transaction", **its), key=number, default=None)
            ended = max(self.tables.where("transaction_decision", **its), key=number, default=None)
            if ended is not None and opened is not None and number(ended) < number(opened):
                ended = None
            newest = ended or opened
            if newest is None and name is None:
                continue
            spans = self._spans(newest, ended)
            seen = [span for span in spans if self._visible(span[0] or 0, "consume", "observe")]
            if not (seen or everywhere):
                continue
            row = opened if newest is None or opened is None or number(opened) == number(newest) else None
            partitions, firsts = [partition for partition, _ in seen], [first for _, first in seen]
            if everywhere:  # as it stands: where it tears, the two are not equally long
                partitions = [partition for partition, _ in spans if partition is not None]
                firsts = [first for at, (_, first) in enumerate(spans) if ended is None or at < len(ended["first_offsets"])]
            yield {
                "transactional_id": name
                if self.rights.topics(self.tables, "observe") is None or self.rights.may_use("transactional_id", name)
                else None,
                "producer_id": producer["producer_id"],
                "producer_epoch": None if newest is None else newest["producer_epoch"],
                "transaction_number": None if newest is None else newest["transaction_number"],
                "state": self._state(producer, newest, ended),
                "timeout_ms": producer["timeout_ms"] if row is None else row["timeout_ms"],
                "partitions": partitions,
                "first_offsets": firsts,
            }

    def _spans(self, newest: Row | None, ended: Row | None) -> list[tuple[int | None, int | None]]:
        if newest is None:
            return []
        if ended is None:
            its = self.tables.where("transaction_partition", **named(newest))
            return sorted((row["partition_id"], row["first_offset"]) for row in its)
        count = max(len(ended["partitions"]), len(ended["first_offsets"]))
        return [(nth(ended["partitions"], at), nth(ended["first_offsets"], at)) for at in range(count)]

    def _state(self, producer: Row, newest: Row | None, ended: Row | None) -> str:
        if newest is None:
            return "Empty"
        if ended is None:
            return "Ongoing" if self.tables.of("transaction_seal", newest) is None else "Prepared"
        end = "Commit" if ended["outcome"] == "COMMIT" else "Abort"
        for at, partition in enumerate(ended["partitions"]):
            floor, last = self.tables.floor(partition), nth(ended["last_offsets"], at)
            passed = floor is not None and last is not None and floor > last
            marker = self.tables.of("transaction_marker", ended, partition_id=partition)
            if partition in self.topic_of and marker is None and not passed:
                return f"Prepare{end}"
        return "Empty" if ended["producer_epoch"] < producer["epoch"] else f"Complete{end}"


def number(row: Row) -> tuple[int, int]:
    return row["producer_epoch"], row["transaction_number"]


def version(row: Row) -> int:
    return int(row["version"])


# ── both readings ──


@pytest.fixture(scope="module")
def roles(server: Server, database_url: str) -> Iterator[Roles]:
    with open_roles(server, database_url) as made:
        yield made


@pytest.fixture(scope="module")
def two(roles: Roles) -> list[str]:
    """Two roles that may read the views; of what, the test says."""
    return [roles.make("produce:none", "consume:none", "observe:none", "admin:none") for _ in range(2)]


@pytest.fixture(scope="module")
def superuser(server: Server, database_url: str) -> Iterator[Connection]:
    """It may be any role."""
    with server.administrator(sqlalchemy.make_url(database_url).database) as connection:
        yield connection


@pytest.fixture(scope="module")
def partitions(superuser: Connection) -> list[int]:
    return [*new_topic(superuser, 2), *new_topic(superuser)]


def give_rights(soup: Soup, roles: Iterable[str], topics: Iterable[str]) -> None:
    for role in roles:
        for can in ("produce", "consume", "observe"):
            for topic in soup.some([*topics, "*"], 0.25):
                soup.insert("role_right", role_name=role, can=can, topic_pattern=topic, resource="topic")
        for can, resource, names in (("consume", "group", "g"), ("produce", "transactional_id", "t")):
            for pattern in soup.some([f"{names}1", f"{names}2", f"{names}4", f"{names}*"], 0.15):
                soup.insert("role_right", role_name=role, can=can, topic_pattern=pattern, resource=resource)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_database_and_this_file_read_the_tables_alike(
    superuser: Connection, server: Server, two: list[str], partitions: list[int], seed: int
) -> None:
    role = None if seed % 5 == 0 else random.Random(seed).choice(two)
    with superuser.transaction(force_rollback=True):
        soup = Soup(superuser, partitions, seed)
        soup.fill()
        tables = Tables(superuser)
        of_these = {row["topic_id"] for row in tables.rows["partition"] if row["partition_id"] in partitions}
        give_rights(soup, two, [row["name"] for row in tables.rows["topic"] if row["topic_id"] in of_these])
        views = Views(tables, Rights(role, Tables(superuser).rows["role_right"]))
        superuser.execute(f"set local role {role or server.role}")
        with superuser.cursor(row_factory=dict_row) as cursor:
            for view in (
                "topics",
                "record_batches",
                "committed_batches",
                "consumer_groups",
                "share_groups",
                "group_offsets",
                "share_partitions",
                "share_spans",
                "transactions",
            ):
                expected = list(getattr(views, view)())
                found = cursor.execute(f"select * from msgtx.{view}").fetchall()
                names = [*expected[0]] if expected else []
                assert same(found, names) == same(expected, names), view


def same(rows: Iterable[Row], names: Iterable[str]) -> Counter[str]:
    return Counter(str([(name, row[name]) for name in names]) for row in rows)
