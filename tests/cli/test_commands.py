"""The other verbs: what they print, and how they fail."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
from sqlalchemy import make_url

from msgtx import Client, TopicPartition, errors
from msgtx import client as msgtx_client
from msgtx.cli.commands import NAMES, command
from msgtx.cli.terminal import output
from msgtx.cli.terminal.invocation import Command
from msgtx.database import embedded
from tests.cli.program import Ended, Program
from tests.databases import Server, scratch
from tests.store.steps import unique

pytestmark = pytest.mark.slow

Msgtx = Callable[..., Ended]


# ── topics, offsets ──


def test_a_topic_is_created_shown_and_deleted(msgtx: Msgtx) -> None:
    done = msgtx("topics", "create", "t.1", "--partitions", "2", "--retention-ms", "1000", "-o", "jsonl")
    assert done.rows[0]["settings"]["retention_ms"] == 1000
    assert msgtx("topics", "create", "t.1", "--if-not-exists").code == 0
    described = json.loads(msgtx("topics", "describe", "t.1", "-o", "json").out)
    assert (described["name"], described["partitions"]) == ("t.1", 2)
    assert described["ends"][1] == {"partition": 1, "log_start_offset": 0, "last_stable_offset": 0, "log_end_offset": 0}
    assert b"retention_ms" in msgtx("topics", "describe", "t.1").out
    assert "t.1" in {row["name"] for row in msgtx("topics", "list", "-o", "jsonl").rows}
    assert msgtx("topics", "delete", "t.1", "--yes").code == 0
    assert "t.1" not in {row["name"] for row in msgtx("topics", "list", "-o", "jsonl").rows}


def test_a_topic_is_altered(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"a").result(10)
    done = msgtx("topics", "alter", topic, "--partitions", "3", "--retention-ms", "1000", "-o", "json")
    described = json.loads(done.out)
    assert (described["partitions"], described["settings"]["retention_ms"]) == (3, 1000)
    assert b"retention_ms" in msgtx("topics", "alter", topic, "--partitions", "3").out
    with client.producer() as producer:  # which already knows the topic
        assert producer.send(topic, b"b", partition=2).result(10).offset == 0
    assert msgtx("topics", "alter", topic, "--partitions", "2").code == 2
    assert msgtx("topics", "alter", topic).code == 2
    assert msgtx("topics", "alter", "nowhere", "--partitions", "2").code == 2
    assert b"keys move" in msgtx("topics", "alter", "--help").out


def test_records_are_deleted(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer() as producer:
        for value in (b"a", b"b", b"c"):
            producer.send(topic, value).result(10)
    verb = ("topics", "delete-records", topic, "--partition", "0", "--before")
    assert msgtx(*verb, "2", "--dry-run").err == (
        f"would delete the records of {topic}-0 below offset 2 (it goes from 0 to 3)\n"
    )
    assert msgtx(*verb, "2").code == 1  # no one is there to answer
    assert json.loads(msgtx("topics", "describe", topic, "-o", "json").out)["ends"][0]["log_start_offset"] == 0
    assert msgtx(*verb, "2", "--yes", "-o", "jsonl").rows == [{"topic": topic, "partition": 0, "log_start_offset": 2}]
    assert msgtx(*verb, "1", "--yes", "-o", "jsonl").rows[0]["log_start_offset"] == 2
    for how in ("--yes", "--dry-run"):
        assert msgtx(*verb, "4", how).code == 2
    assert msgtx(*verb, "-1", "--yes", "-o", "jsonl").rows[0]["log_start_offset"] == 3
    assert msgtx("topics", "delete-records", topic, "--partition", "1", "--before", "0", "--yes").code == 2
    with pytest.raises(errors.UnknownTopicOrPartition):
        client.admin.partitions.delete_records({TopicPartition("nowhere", 0): 0})


def test_what_came_while_the_question_was_open_is_not_deleted(
    msgtx: Msgtx, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(what: str, **_: bool) -> bool:
        assert "below offset 1" in what
        producer.send(topic, b"meanwhile").result(10)
        return True

    monkeypatch.setattr("msgtx.cli.commands.topics.confirmed", answered)
    with client.producer() as producer:
        producer.send(topic, b"before").result(10)
        done = msgtx("topics", "delete-records", topic, "--partition", "0", "--before", "-1", "-o", "jsonl")
    assert done.rows == [{"topic": topic, "partition": 0, "log_start_offset": 1}]


def test_a_topic_that_was_made_anew_while_the_question_was_open_is_not_deleted(
    msgtx: Msgtx, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(what: str, **_: bool) -> bool:
        client.topics.delete(topic)
        client.topics.create(topic)
        return True

    monkeypatch.setattr("msgtx.cli.terminal.confirmation.confirmed", answered)
    msgtx("topics", "delete", topic).refuses("its preview is outdated", code=1)
    assert topic in client.topics.list()


def test_a_no_among_several_questions_changes_nothing(msgtx: Msgtx, client: Client, topic: str, wide: str) -> None:
    names = {noun: [unique(noun), unique(noun)] for noun in ("group", "share", "snapshot")}
    for group in names["group"]:
        client.admin.groups.reset(group, "earliest", topics=[topic])
    for group in names["share"]:
        client.admin.shares.configure(group, {"delivery_count_limit": 3})
    for name in names["snapshot"]:
        client.snapshots.save(name, client.snapshots.take([topic]).snapshot)
    for verb, (first, second), known in (
        (("topics", "delete"), (topic, wide), client.topics.list),
        (("groups", "delete"), names["group"], lambda: [one.group for one in client.admin.groups.list()]),
        (("shares", "delete"), names["share"], lambda: [one.group for one in client.admin.shares.list()]),
        (("offsets", "delete-snapshot"), names["snapshot"], lambda: [one.name for one in client.snapshots.list()]),
    ):
        refused = msgtx(*verb, first, second, stdin=b"y\nn\n")
        assert (refused.code, {first, second} - {*known()}) == (1, set())
        assert "nothing was changed" in refused.err
        assert msgtx(*verb, first, second, stdin=b"y\ny\n").code == 0
        assert {first, second} & {*known()} == set()


def test_ctrl_c_at_a_question_is_an_interruption(msgtx: Msgtx, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    assert msgtx("topics", "delete", topic).code == 130
    assert msgtx("topics", "describe", topic).code == 0


def test_what_destroys_asks_first(msgtx: Msgtx, topic: str) -> None:
    assert (
        msgtx("topics", "delete", topic, "--dry-run").err == f"would delete topic {topic} (1 partition, with its records)\n"
    )
    assert msgtx("topics", "delete", topic, stdin=b"n\n").code == 1
    assert msgtx("topics", "delete", topic).code == 1  # no one is there to answer
    assert msgtx("topics", "describe", topic).code == 0
    assert msgtx("topics", "delete", topic, stdin=b"y\n").code == 0
    assert msgtx("topics", "describe", topic).code == 2


def test_offsets_at_a_time_and_for_an_isolation(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer() as producer:
        for timestamp in (1_000, 2_000, 3_000):
            producer.send(topic, b"x", timestamp=timestamp)
    with client.producer(transactional_id="offsets") as producer:
        producer.begin_transaction()
        producer.send(topic, b"open")
        producer.flush(30)

        def offset(*options: str) -> tuple[int | None, int | None]:
            (row,) = msgtx("offsets", topic, *options, "-o", "jsonl").rows
            return row["offset"], row["timestamp"]

        assert offset()[0] == 3
        assert offset("--isolation", "read_uncommitted")[0] == 4
        assert offset("--time", "earliest")[0] == 0
        assert offset("--time", "1500") == (1, 2_000)
        assert offset("--time", "3001") == (None, None)
    assert msgtx("offsets", topic, "--time", "yesterday").code == 2


# ── transactions ──


def test_an_open_transaction_is_found_and_aborted(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer(transactional_id="hanging [1]\x1b[31m") as producer:
        name = str(producer.begin_transaction().id)
        producer.send(topic, b"x")
        producer.flush(30)
        listed = ("transactions", "list", "--pattern", r"hanging.*\[31m", "-o", "jsonl")
        assert [row["state"] for row in msgtx(*listed, "--longer-than-ms", "0").rows] == ["Ongoing"]
        assert msgtx(*listed, "--longer-than-ms", "600000").rows == []
        assert msgtx(*listed, "--state", "CompleteCommit").rows == []
        table = msgtx("transactions", "list").out
        assert b"hanging [1]\\x1b[31m" in table  # shown, and not obeyed by the terminal
        described = msgtx("transactions", "describe", "hanging [1]\x1b[31m", "-o", "jsonl").rows[0]
        assert described["transaction_id"] == name
        assert described["partitions"] == [{"topic": topic, "partition": 0}]
        assert b"OPEN" in msgtx("transactions", "outcome", name).out
        assert msgtx("transactions", "abort", name, "--dry-run").err == f"would abort transaction {name} (OPEN)\n"
        assert msgtx("transactions", "abort", name, stdin=b"n\n").code == 1
        ended = msgtx("transactions", "abort", name, "--yes", "-o", "jsonl").rows
        assert ended == [{"transaction_id": name, "outcome": "ABORTED", "decided_by": "admin"}]
    unknown = msgtx("transactions", "outcome", "999999.0.0", "-o", "jsonl")
    assert (unknown.rows[0]["outcome"], unknown.code) == ("UNKNOWN", 1)
    assert msgtx("transactions", "outcome", "1.2").code == 2
    assert msgtx("transactions", "abort", "999999.0.0", "--yes").code == 1


def test_outcome_resolves_when_asked(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer(transactional_id="resolved") as producer:
        name = str(producer.begin_transaction().id)
        producer.send(topic, b"x")
        producer.flush(30)
        assert msgtx("transactions", "outcome", name, "-o", "jsonl").rows[0]["outcome"] == "OPEN"
        found = msgtx("transactions", "outcome", name, "--resolve", "-o", "jsonl").rows
        assert found == [{"transaction_id": name, "outcome": "ABORTED", "decided_by": "resolve"}]


def test_a_fenced_producer_ends_with_exit_code_4(program: Program, msgtx: Msgtx, topic: str) -> None:
    with program.start("produce", topic, "--transactional-id", "fenced", "--transaction-size", "1") as process:
        process.stdin.write(b"1\n")
        process.stdin.flush()
        assert msgtx("consume", topic, "--from-beginning", "--max-messages", "1").out == b"1\n"
        assert msgtx("transactions", "fence", "fenced", "--yes", "-o", "jsonl").rows[0]["epoch"] == 1
        done = program.ended(process, b"2\n")
    assert done.code == 4
    assert done.err.count("\n") == 1
    assert msgtx("transactions", "fence", "nobody", "--yes").code == 2


# ── db, sweep ──


def test_the_schema_is_checked_upgraded_and_named(msgtx: Msgtx, make_database: Callable[..., str]) -> None:
    bare = make_database(schema=False)
    missing = msgtx("--url", bare, "topics", "list")
    assert (missing.code, missing.out) == (2, b"")
    assert "run `msgtx db init`" in missing.err
    checked = msgtx("--url", bare, "db", "check")
    assert (checked.code, checked.err) == (1, "msgtx: the database has no msgtx schema: run `msgtx db init`\n")
    assert re.fullmatch(rb"schema version \d+: made, .*\n", msgtx("--url", bare, "db", "init").out)
    assert b"are as they were; the functions and views are as they were" in msgtx("--url", bare, "db", "init").out
    assert msgtx("--url", bare, "db", "init", "-o", "jsonl").rows[0]["before"] is not None
    assert msgtx("--url", bare, "db", "upgrade", "-o", "jsonl").rows[0]["functions_renewed"] is False
    assert msgtx("--url", bare, "db", "check", "-o", "jsonl").rows == [{"ok": True, "problems": []}]
    version = msgtx("--url", bare, "db", "current", "-o", "jsonl").rows[0]["schema_version"]
    assert int(version) >= 1


def test_eight_upgrades_at_once_make_one_schema(make_database: Callable[..., str]) -> None:
    program = Program(make_database(schema=False))
    processes = [
        subprocess.Popen(
            program.command("db", "upgrade", "-o", "jsonl"),
            env={**os.environ, "MSGTX_DATABASE_URL": program.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(8)
    ]
    ended = [program.ended(process) for process in processes]
    assert [(one.code, one.err) for one in ended] == [(0, "")] * 8
    assert sum(one.rows[0]["before"] is None for one in ended) == 1


def test_the_url_hides_its_password_unless_asked(msgtx: Msgtx, database_url: str) -> None:
    assert msgtx("db", "url", "--with-password").out.decode() == database_url + "\n"
    assert b":***@" in msgtx("db", "url").out


def test_settings_are_shown_and_changed(msgtx: Msgtx) -> None:
    assert {"name": "lease_ms", "value": 10_000} in msgtx("db", "settings", "-o", "jsonl").rows
    assert msgtx("db", "settings", "lease_ms", "9000", "-o", "jsonl").rows == [{"name": "lease_ms", "value": 9_000}]
    assert msgtx("db", "settings", "lease_ms", "10000").code == 0
    assert msgtx("db", "settings", "lease_ms", "0").code == 2
    assert "nearest known one is 'lease_ms'" in msgtx("db", "settings", "leases_ms", "1").err


def test_stop_of_no_server_is_no_error(msgtx: Msgtx, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MSGTX_HOME", str(tmp_path / "nothing"))
    done = msgtx("db", "stop")
    assert (done.code, done.err) == (0, f"no server runs in {tmp_path / 'nothing'}\n")


def test_start_starts_the_embedded_server_whatever_database_is_named(msgtx: Msgtx, monkeypatch: pytest.MonkeyPatch) -> None:
    home = scratch("msgtx-start-") / "home"
    monkeypatch.setenv("MSGTX_HOME", str(home))
    try:
        first, again = msgtx("db", "start"), msgtx("db", "start", "-o", "json")
        assert (first.code, first.err) == (0, f"started the server in {home}\n")
        assert (again.code, again.err) == (0, f"a server runs in {home}\n")
        assert json.loads(again.out)["url"] == first.out.decode().strip()
        assert ":***@127.0.0.1" in first.out.decode()
    finally:
        stopped = msgtx("db", "stop", "--yes")
        shutil.rmtree(home.parent)
    assert stopped.err == f"stopped the server of {home}\n"


def test_stop_asks_if_others_are_connected(msgtx: Msgtx, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(embedded, "sessions", lambda: 2)
    monkeypatch.setattr(embedded, "stop", lambda: stopped.append("yes") or True)
    refused = msgtx("db", "stop", stdin=b"n\n")
    assert (refused.code, stopped) == (1, [])
    assert f"stop the server of {embedded.default_home()}: 2 sessions are connected?" in refused.err
    assert msgtx("db", "stop", stdin=b"y\n").code == 0
    assert msgtx("db", "stop", "--yes").code == 0
    monkeypatch.setattr(embedded, "sessions", lambda: 0)
    assert msgtx("db", "stop").code == 0
    assert stopped == ["yes"] * 3


def test_the_embedded_server_counts_its_sessions(client: Client) -> None:
    if "MSGTX_TEST_DATABASE_URL" in os.environ:
        pytest.skip("this run has no embedded server")
    before = embedded.sessions()
    with Client(client.runtime.engine.__class__(client.secret_url)) as other:
        assert other.topics.list() is not None
        assert embedded.sessions() > before


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("topics", "create", "units-a", "--retention-ms", "7d", "--retention-bytes", "10GiB"), b"604800000"),
        (("db", "settings", "lease_ms", "10s"), b"10000"),
        (("consume", "units", "--timeout-ms", "0.1s"), b""),
        (("transactions", "list", "--longer-than-ms", "1h"), b""),
        (("transactions", "find-hanging", "--max-transaction-timeout", "90s"), b""),
        (("topics", "create", "units", "--if-not-exists"), b"units"),
    ],
)
def test_durations_and_sizes_have_units(msgtx: Msgtx, arguments: tuple[str, ...], shown: bytes) -> None:
    msgtx("topics", "create", "units", "--if-not-exists")
    done = msgtx(*arguments, "-o", "jsonl")
    assert (done.code, done.err) == (0, "")
    assert shown in done.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("topics", "create", "x", "--retention-ms", "a week"), "--retention-ms reads like 10s, 500ms, 1h30m or 7d"),
        (("topics", "create", "x", "--retention-ms=-2"), "--retention-ms is -1 or more, not -2"),
        (("topics", "create", "x", "--retention-bytes", "10G"), "--retention-bytes reads like 512B, 400KiB or 50MiB"),
        (("consume", "x", "--timeout-ms", "-1s"), "--timeout-ms reads like"),
        (("db", "settings", "lease_ms", "soon"), "lease_ms reads like"),
        (("db", "settings", "group_max_members", "many"), "group_max_members is a whole number"),
    ],
)
def test_a_unit_that_is_none_is_refused(msgtx: Msgtx, arguments: tuple[str, ...], complaint: str) -> None:
    msgtx(*arguments).refuses(complaint)


def test_a_database_that_cannot_be_used_has_its_exit_code_and_advice(msgtx: Msgtx, database_url: str) -> None:
    """3, whether the server, the login or the database is not there; what to do about it, on the same line."""
    address = make_url(database_url)
    for wrong, complaint in (
        (address.set(password="wrong"), "correct user and password"),  # noqa: S106
        (address.set(username="nobody"), "correct user and password"),
        (address.set(database="nowhere"), 'database "nowhere" does not exist; correct its name in the URL'),
        (address.set(port=1), "check the address and the server"),
    ):
        msgtx("--url", wrong.render_as_string(hide_password=False), "topics", "list").refuses(complaint, code=3)
    for empty in ("", " "):
        done = msgtx("--url", empty, "topics", "list")
        assert done.code == 2
        assert "is empty" in done.err


def test_a_missing_partition_is_not_a_missing_topic(msgtx: Msgtx, topic: str) -> None:
    done = msgtx("produce", topic, "--partition", "99", stdin=b"a\n")
    assert (done.code, done.err) == (2, f"msgtx: there is no partition {topic}-99; {topic} has partitions 0 to 0\n")
    empty = msgtx("produce", topic, "--partition", "99")
    assert (empty.code, empty.err) == (done.code, done.err)
    done = msgtx("produce", topic[:-1] + "x", stdin=b"a\n")
    assert "did you mean" in done.err


def test_a_standby_that_does_not_answer_is_no_topic_without_records(msgtx: Msgtx, topic: str) -> None:
    done = msgtx("consume", topic, "--timeout-ms", "0.1s", "--read-url", "postgresql://nobody@127.0.0.1:1/x")
    assert (done.code, done.out) == (3, b"")
    assert "port 1 failed" in done.err


@pytest.mark.parametrize(
    "arguments", [("--on-failover", "stop", "topics", "list"), ("topics", "list", "--on-failover", "stop")]
)
def test_a_command_can_be_told_to_stop_at_a_failover(
    msgtx: Msgtx, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library does it; the option outweighs the environment."""
    found: list[Client] = []
    connect = msgtx_client.connect

    def noted(*url: Any, **settings: Any) -> Client:
        found.append(connect(*url, **settings))
        return found[-1]

    monkeypatch.setattr(msgtx_client, "connect", noted)
    monkeypatch.setenv("MSGTX_ON_FAILOVER", "trust")
    assert msgtx(*arguments).code == 0
    assert [client.runtime.engine.on_failover for client in found] == ["stop"]


def test_a_reader_that_leaves_ends_a_consumer_that_waits(program: Program, client: Client, topic: str) -> None:
    """As `msgtx consume … | head -1` does: there may be no next record."""
    with client.producer() as producer:
        producer.send(topic, b"only")
    with program.start("consume", topic, "--from-beginning") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"only\n"
        process.stdout.close()
        assert process.wait(20) == 0


def test_a_narrow_terminal_breaks_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(output, "write", written.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    output.show_table(("group", "current_offset"), [["a-rather-long-name", 123456789], ["b", 1]])
    assert "".join(written).splitlines() == [
        "group           a-rather-long-name",
        "current_offset  123456789",
        "",
        "group           b",
        "current_offset  1",
    ]


def test_a_doctor_with_nothing_to_tell_says_so(msgtx: Msgtx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgtx_client.Admin, "doctor", lambda self, most: [])
    done = msgtx("doctor", "--level", "warning")
    assert (done.code, done.out, done.err) == (0, b"", "nothing to tell from warning on\n")
    assert msgtx("doctor", "-o", "json").out == b"[]\n"


def test_a_question_is_not_answered_by_the_environment(msgtx: Msgtx, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSGTX_TOPICS_DELETE_YES", "1")
    done = msgtx("topics", "delete", topic)
    assert done.code == 1
    assert msgtx("topics", "describe", topic).code == 0
    decisive = {"yes", "resolve", "replace"}
    found = {option.name: option for verb in verbs() for option in verb.params if option.name in decisive}
    assert found.keys() == decisive
    assert not any(isinstance(option, click.Option) and option.allow_from_autoenv for option in found.values())


def verbs(under: click.Command = command) -> Iterator[click.Command]:
    if not isinstance(under, click.Group):
        yield under
        return
    context = click.Context(under)
    for name in under.list_commands(context):
        verb = under.get_command(context, name)
        assert verb is not None
        yield from verbs(verb)


@pytest.mark.parametrize("example", [example for verb in verbs() if isinstance(verb, Command) for example in verb.examples])
def test_an_example_of_the_help_is_one_that_works(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lines.txt", "orders.json", "offsets.csv"):
        (tmp_path / name).touch()
    for part in re.split(r" [|>] ", example):
        words = shlex.split(part)
        if words[0] != "msgtx":
            continue
        verb: click.Command = command
        words = words[1:]
        while isinstance(verb, click.Group):
            context = click.Context(verb)
            _, found, words = verb.resolve_command(context, words)
            assert found is not None
            verb = found
        with verb.make_context(part, words):
            pass


def test_the_help_shows_its_examples_unbroken(msgtx: Msgtx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = msgtx("process", "--help").out.decode()
    assert "Examples:\n  msgtx process orders invoices shop:invoice --group billing --transactional-id billing-1\n" in shown


@pytest.mark.parametrize(
    ("words", "found"),
    [("consume compl", b"completed"), ("groups describe compl", b"completing"), ("topics create compl", b"")],
)
def test_a_shell_completes_topics_and_groups(program: Program, client: Client, words: str, found: bytes) -> None:
    client.topics.create("completed", if_not_exists=True)
    with client.consumer("completed", group="completing") as consumer:
        consumer.commit({TopicPartition("completed", 0): 0})
    asked = {"_MSGTX_COMPLETE": "bash_complete", "COMP_WORDS": f"msgtx {words}", "COMP_CWORD": str(len(words.split()))}
    with program.start(environment=asked) as process:
        done = program.ended(process)
    assert (done.code, done.err) == (0, "")
    assert done.out.split() == ([b"plain," + found] if found else [])


def test_a_shell_that_completes_starts_no_server(program: Program, tmp_path: Path) -> None:
    asked = {"_MSGTX_COMPLETE": "bash_complete", "COMP_WORDS": "msgtx consume a", "COMP_CWORD": "2"}
    nowhere = {"MSGTX_DATABASE_URL": "", "MSGTX_HOME": str(tmp_path / "home")}
    with program.start(environment={**asked, **nowhere}) as process:
        done = program.ended(process)
    assert (done.code, done.out.strip(), done.err) == (0, b"", "")
    assert not (tmp_path / "home").exists()


def test_sweep_tells_what_it_did(msgtx: Msgtx) -> None:
    assert msgtx("sweep").code == 0
    assert msgtx("sweep", "-o", "jsonl").rows[0]["transactions_aborted"] == 0


# ── the program ──


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("nonsense",), 2, "No such command 'nonsense' (see `msgtx --help`)"),
        (("topic", "list"), 2, "No such command 'topic': did you mean 'topics'? (see `msgtx --help`)"),
        (("topics", "lst"), 2, "No such command 'lst': did you mean 'list'? (see `msgtx topics --help`)"),
        (("topics", "create"), 2, "Missing argument 'TOPIC...' (see `msgtx topics create --help`)"),
        (("topics", "create", "a b"), 2, "topic name 'a b' is not allowed"),
        (("topics", "create", "\udcff"), 2, "is no valid UTF-8"),
        (("topics", "describe", "nowhere"), 2, "there is no topic 'nowhere'"),
        (("produce", "nowhere"), 2, "there is no topic 'nowhere'"),
        (("produce", "nowhere", "/no/such/file"), 2, "does not exist"),
        (("db", "settings", "leases_ms"), 2, "unknown setting 'leases_ms'; known are "),
        (("produce", "nowhere", "--json", "--key", "id"), 2, "exclude each other"),
        (("produce", "nowhere", "--json", "--dedup-key", "id"), 2, "exclude each other"),
        (("consume", "nowhere"), 2, "there is no topic 'nowhere'"),
        (("process", "nowhere", "out", "os:getcwd", "--group", "g", "--transactional-id", "t"), 2, "no topic 'nowhere'"),
        (("--url", "mysql://localhost/x", "sweep"), 2, "msgtx needs PostgreSQL, not mysql"),
        (("--url", "postgresql://nobody@127.0.0.1:1/x", "sweep"), 3, "Connection refused; check the address"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    msgtx: Msgtx, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    done = msgtx(*arguments)
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith("msgtx: ")
    assert complaint in done.err
    assert done.err.count("\n") == 1


def test_a_noun_alone_shows_its_help(msgtx: Msgtx) -> None:
    done = msgtx("coordinator")
    assert done.code == 2
    assert done.err.startswith("Usage: msgtx coordinator")
    assert done.err.count("\n") > 5


def test_psql_gets_the_address_in_its_environment(program: Program, tmp_path: Path) -> None:
    """No password is an argument, and no version of psql reads an option that it does not know."""
    psql = tmp_path / "psql"
    psql.write_text('#!/bin/sh\necho "$PGHOST $PGPORT $PGDATABASE $PGREQUIREAUTH"\nprintf "%s\\n" "$@"\n')
    psql.chmod(0o755)
    url = "postgresql://ada:secret@somewhere:77/shop?require_auth=none&keepalives=0"
    with program.start("--url", url, "db", "psql", "--", "-c", "select 1", environment={"PATH": str(tmp_path)}) as process:
        done = program.ended(process)
    assert (done.code, done.err) == (0, "")
    assert done.out.decode().splitlines() == ["somewhere 77 shop none", "keepalives=0", "-c", "select 1"]
    with program.start("--url", url, "db", "psql", environment={"PATH": "/nowhere"}) as process:
        program.ended(process).refuses("there is no psql in the PATH", code=1)


def test_a_template_prints_the_parts_of_a_record(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"v\x00", key=b"k", headers=[("a", b"1"), ("b", None)], timestamp=5)
        producer.send(topic, None)
    shown = ("consume", topic, "--from-beginning", "--no-follow")
    assert msgtx(*shown, "-f", r"%t-%p %o %k %K %s %S %T %h %%\x21\t\n", "--max-messages", "1").out == (
        f"{topic}-0 0 k 1 v\0 2 5 a=1,b= %!\t\n".encode()
    )
    assert msgtx(*shown, "--format", r"%o[%k%s%S]\n").out == b"0[kv\x002]\n1[-1]\n"
    msgtx(*shown, "-f", "%z").refuses("unknown part '%z'; known are %t %p")
    msgtx(*shown, "-f", r"\q").refuses("unknown escape")
    msgtx(*shown, "-f", "%s", "-o", "json").refuses("--format excludes")


def test_a_role_without_rights_is_told_whom_to_ask(msgtx: Msgtx, server: Server, database_url: str) -> None:
    role = f"stranger_{os.getpid()}"
    with server.administrator() as connection:
        connection.execute(f"create role {role} login password 'x'")
        try:
            done = msgtx("--url", f"postgresql://{role}:x@{database_url.split('@')[1]}", "topics", "list")
        finally:
            connection.execute(f"drop role {role}")
    assert (done.code, done.err) == (
        1,
        "msgtx: permission denied for schema msgtx; ask the owner of the msgtx schema for it\n",
    )


def test_a_read_only_database_is_named(msgtx: Msgtx, database_url: str) -> None:
    url = f"{database_url}?options=-c%20default_transaction_read_only%3Don"
    done = msgtx("--url", url, "topics", "create", "never")
    assert (done.code, "read-only" in done.err) == (2, True)
    assert msgtx("--url", url, "topics", "list").code == 0


def test_every_option_is_an_environment_variable(msgtx: Msgtx, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "MSGTX_TOPICS_CREATE_PARTITIONS" in msgtx("--help").out.decode()
    monkeypatch.setenv("MSGTX_OUTPUT", "jsonl")
    monkeypatch.setenv("MSGTX_CONSUME_FROM_BEGINNING", "1")
    monkeypatch.setenv("MSGTX_CONSUME_MAX_MESSAGES", "1")
    assert msgtx("produce", topic, stdin=b"a\nb\n").rows[0]["records"] == 2
    assert [row["value"] for row in msgtx("consume", topic).rows] == ["a"]


def test_help_of_each_command_names_its_options(msgtx: Msgtx) -> None:
    listed = msgtx("--help").out.decode().split("Commands:\n")[1]
    names = re.findall(r"^  (\S+)", listed, re.MULTILINE)
    assert len(names) == len(NAMES)
    pages = [msgtx(name, "--help").out.decode() for name in names]
    assert all(page.startswith("Usage: msgtx") and "--help" in page for page in pages)
    lists = [page.partition("Commands:\n")[2] for page in pages]
    assert not any(line.endswith("...") for page in lists for line in page.splitlines()), "a sentence is whole"


def test_the_demo_shows_tables_only(msgtx: Msgtx) -> None:
    done = msgtx("demo", "-o", "json")
    assert (done.code, done.out) == (2, b"")
    assert "the demo prints tables only" in done.err
    assert msgtx("--version").out.startswith(b"msgtx ")


@pytest.mark.parametrize("command", [("demo", "--console"), ("console", "--no-sign-in")])
def test_a_taken_port_is_told_before_anything_is_done(msgtx: Msgtx, client: Client, command: tuple[str, ...]) -> None:
    before = client.topics.list()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        msgtx(*command, "--port", str(port)).refuses(f"127.0.0.1 port {port} cannot be used", code=1)
    assert client.topics.list() == before


def test_shells_complete_commands_and_options(msgtx: Msgtx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MSGTX_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "msgtx topics de")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert sorted(msgtx().out.split()) == [b"plain,delete", b"plain,delete-records", b"plain,describe"]


def test_tables_are_plain_in_a_pipe(msgtx: Msgtx) -> None:
    name = "long-" + "x" * 200
    assert msgtx("topics", "create", name).code == 0
    out = msgtx("topics", "list").out.decode()
    assert any(line.split() == [name, "1"] for line in out.splitlines())
    assert "\x1b" not in out
    assert msgtx("topics", "delete", name, "--yes").code == 0


def test_a_plain_table_has_its_columns_below_one_another(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    rows = [["東京", 1.5, None], ["e\u0301t\u00e9\n", 22.25, {"a": 1}]]
    output.show_table(("city", "degrees", "more"), rows, title="weather")
    output.show_table(("", ""), [["name", ["b", "c"]]])
    output.show_table(("only", "names"), [])
    assert capfdbinary.readouterr().out.decode().splitlines() == [
        "weather",
        "city   degrees  more",
        "東京     1.500  -",
        "e\u0301t\u00e9\\n   22.250  a=1",
        "name  b, c",
        "only  names",
    ]


@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 0), ("2>&-", 0), ("<&-", 0), ("| true", 0), ("2>&1 >/dev/full", 1)]
)
def test_a_stream_that_is_closed_is_no_traceback(program: Program, redirection: str, code: int) -> None:
    environment = {**os.environ, "MSGTX_DATABASE_URL": program.url}
    line = f"set -o pipefail; {shlex.join(program.command('topics', 'list'))} {redirection}"
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert "Traceback" not in done.stdout


def test_help_needs_no_database_driver(program: Program) -> None:
    code = "import sys; from msgtx.cli.main import run; run(['--help']); assert 'psycopg' not in sys.modules"
    done = subprocess.run([program.command()[0], "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_connects_does_not_wait_for_alembic(database_url: str) -> None:
    code = "import sys, msgtx; msgtx.connect(sys.argv[1]).close(); assert 'alembic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, database_url], check=True)


def test_a_producer_and_a_consumer_import_no_sqlalchemy_and_not_each_other(database_url: str) -> None:
    """SQLAlchemy is imported with a session of its own (decision 0186)."""
    code = """
import sys, msgtx
with msgtx.connect(sys.argv[1]) as client:
    client.topics.create("imported")
    with client.consumer("imported", group="imports", auto_offset_reset="earliest") as consumer:
        assert consumer.poll(0) == []
        consumer.commit()
        with client.runtime.engine.connection() as connection:
            client.runtime.look_at_topics(connection)
    assert not {"sqlalchemy", "msgtx.producer"} & sys.modules.keys()
    with client.producer(transactional_id="imports") as producer, producer.transaction():
        producer.send("imported", b"1")
assert "sqlalchemy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, database_url], check=True)


MOST_MODULES: Final = 115  # of this package, for one question; a client alone has some 85
OTHERS: Final = {
    "sqlalchemy",
    "alembic",
    "rich",
    *(f"msgtx.{room}" for room in ("producer", "consumer", "shares", "process")),
}


@pytest.mark.parametrize("arguments", [["topics", "list"], ["groups", "list"], ["transactions", "list"]])
def test_a_question_imports_what_it_needs(database_url: str, arguments: list[str]) -> None:
    """Every module takes a share of a third of a second (decision 0186)."""
    code = "import sys; from msgtx.cli.main import run; code = run(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
    environment = {**os.environ, "MSGTX_DATABASE_URL": database_url}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = {*done.stdout.split("\n")[-2].split()}
    assert OTHERS & imported == set()
    ours = sorted(name for name in imported if name.startswith("msgtx"))
    assert len(ours) <= MOST_MODULES, ours


def test_perf_measures_on_topics_of_its_own(msgtx: Msgtx) -> None:
    once = ("--repeats", "1", "-o", "jsonl")
    assert msgtx("perf", "produce", "--records", "1000", "--yes", *once).rows[0]["median"]["records"] >= 1000
    assert msgtx("perf", "consume", "--records", "1000", *once).rows[0]["median"]["records"] == 1000
    assert b"records_per_second" in msgtx("perf", "produce", "--records", "1000", "--yes", "--repeats", "1").out
    assert msgtx("perf", "produce", "--size", "0").code == 2
    refused = msgtx("perf", "produce", "--records", "1000")
    assert (refused.code, refused.out) == (1, b"")
    assert "write 1,000 records of 100 bytes, in 3 runs?" in refused.err
    assert not [row for row in msgtx("topics", "list", "-o", "jsonl").rows if row["name"].startswith("msgtx-perf")]
