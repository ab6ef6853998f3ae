"""The reference and the page about Kafka name what is there: settings, commands, errors, functions, calls."""

import fnmatch
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import click
import pytest

import msgtx
from msgtx import aio, console, errors, orm
from msgtx.admin.groups import GroupsAdmin
from msgtx.admin.partitions import PartitionsAdmin
from msgtx.admin.producers import ProducersAdmin
from msgtx.admin.shares import SharesAdmin
from msgtx.admin.spark import SparkAdmin
from msgtx.admin.topics import TopicsAdmin
from msgtx.admin.transactions import TransactionsAdmin
from msgtx.cli.commands import command
from msgtx.cli.terminal import interruption
from msgtx.client import Admin
from msgtx.config import KAFKA_NAMES, ConsumerConfig, ProducerConfig, resolve
from msgtx.declared.settings import CLIENT, CONSUMER, INSTALLATION, PRODUCER, SHARE_CONSUMER, SHARE_GROUP, TOPIC
from msgtx.snapshot import Snapshots
from tests.databases import Connection
from tests.docs.snippets import PAGES, ROOT, snippets
from tests.histories.anomalies import Name
from tests.mutants.table import all_mutants
from tests.system.test_crash_sweep import BOUNDARIES

OF_CLIENTS: Final = {one.name for one in (*CLIENT, *PRODUCER, *CONSUMER, *SHARE_CONSUMER)}
PORTING: Final = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
KAFKA: Final[dict[str, dict[str, str]]] = tomllib.loads((ROOT / "tests/docs/kafka_names.toml").read_text())


def section(text: str, heading: str) -> str:
    """Return what stands below a heading, up to the next one of its level."""
    level = heading.split(maxsplit=1)[0]
    start = text.index(f"{heading}\n")
    end = re.search(rf"(?m)^{level} ", text[start + 1 :])
    return text[start : start + 1 + end.start()] if end else text[start:]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a section's table."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not re.match(r"\|[-|]+$", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with its path below `msgtx`."""

    def below(found: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        yield path, found
        if isinstance(found, click.Group):
            context = click.Context(found)
            for name in found.list_commands(context):
                next_one = found.get_command(context, name)
                assert next_one is not None
                yield from below(next_one, (*path, name))

    yield from below(command, ())


COMMANDS: Final = dict(commands())


# ── settings ──


def test_the_defaults_of_topics_are_those_of_the_tables(client: msgtx.Client) -> None:
    assert client.topics.create("plain").settings == {one.name: one.initial for one in TOPIC}


def test_the_defaults_of_share_groups_are_those_of_the_tables(client: msgtx.Client) -> None:
    client.admin.shares.configure("plain", {})
    found = client.admin.shares.describe("plain").settings
    assert found.pop("dead_letter_topic") == "plain-dead-letters"
    assert found | {"dead_letter_topic": None} == {one.name: one.initial for one in SHARE_GROUP}


def test_the_settings_of_the_installation_are_those_of_the_table(connection: Connection) -> None:
    found = dict(connection.execute("select name, value from msgtx.setting").fetchall())
    assert found == {one.name: one.initial for one in INSTALLATION}


def test_each_variable_of_the_environment_is_told() -> None:
    files = [path for folder in ("msgtx", "cli", "spark_jobs") for path in (ROOT / folder).rglob("*.py")]
    used = {name for path in files for name in re.findall(r'"(MSGTX_[A-Z_]+)"', path.read_text(encoding="utf-8"))}
    of_settings = {f"MSGTX_{name.upper()}" for name in OF_CLIENTS}
    of_options = {str(each.envvar) for path, found in COMMANDS.items() if path for each in found.params}
    text = section((ROOT / "docs/reference/settings.md").read_text(encoding="utf-8"), "## Environment")
    told = {name for row in rows(text)[1:] for name in code(row[0])[:1] if name != "MSGTX_"}
    assert told == used - of_settings - of_options - {"MSGTX_COMPLETE"} | {"MSGTX_SPARK_MASTER"}


def test_the_page_about_installing_names_the_extras_and_the_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert {code(row[0])[0] for row in rows(section(text, "## Extras"))[1:]} == project["optional-dependencies"].keys()
    (sqlalchemy,) = [re.sub(r"\D+", "", each, count=1) for each in project["dependencies"] if each.startswith("sqlalchemy")]
    assert f"Python {project['requires-python'].removeprefix('>=')} or later, SQLAlchemy {sqlalchemy} or later" in text
    assert f"msgtx-{project['version']}-py3-none-any.whl" in text


# ── errors and commands ──


def test_the_exit_codes_are_those_of_the_program() -> None:
    text = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    told = [int(row[0]) for row in rows(section(text, "## Exit codes")) if row[0].isdigit()]
    assert told == [0, *sorted({error.exit_code for error in errors.BY_NAME.values()}), interruption.INTERRUPTED]


def site() -> ModuleType:
    """Load what the build adds to the pages."""
    spec = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_page_of_the_site_asks_no_other_host() -> None:
    """Not even for the script of its search."""
    file = SimpleNamespace(dest_uri="how-to/worker.html", src_uri="decisions/0001.md")
    page = SimpleNamespace(file=file, meta={})
    made = site()
    assert made.on_post_page(f'<script src="{made.SHIM}">', page=page) == '<script src="../iframe-worker.js">'
    assert (ROOT / "docs" / "iframe-worker.js").exists()
    made.on_page_markdown("", page=page)
    assert page.meta["search"]["boost"] < 1  # behind the pages for users


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://example.com/shop/msgtx.git", "https://example.com/shop/msgtx"),
        ("https://ada:secret@example.com:8443/msgtx/", "https://example.com:8443/msgtx"),
        ("git@example.com:shop/msgtx.git", "https://example.com/shop/msgtx"),
        ("/srv/msgtx", None),
        ('https://example.com/"><script>', None),
        ("", None),
    ],
)
def test_the_source_of_the_site_is_an_address_without_secrets(remote: str, address: str | None) -> None:
    assert site()._address(remote) == address


def test_a_figure_of_the_front_page_is_one_of_the_page_that_says_how_it_was_measured() -> None:
    made = site()
    table = rows("\n".join(made.figures()))
    assert len(table) == 1 + len(made.BESIDE)
    told = (ROOT / "docs/is-it-for-me.md").read_text(encoding="utf-8")
    assert [cell for row in table[1:] for cell in row[1:] if f"| {cell} " not in told] == []
    with pytest.raises(LookupError, match="bananas"):
        made._figure("bananas", "pgmq")


def test_what_the_build_generates_is_complete() -> None:
    made = site()
    text = {name: "\n".join(make()) for name, make in made.GENERATED.items()}
    families = {"MsgtxError", "RetriableError", "AbortableError", "FatalError", "UsageError"}
    assert set(re.findall(r"(?m)^\| `(\w+)`", text["errors"])) == errors.BY_NAME.keys() - families
    assert all(cell for row in rows(text["errors"])[1:] for cell in row)
    told = set(re.findall(r"(?m)^#{3,4} msgtx ?([\w -]*)$", text["command line"]))
    assert told == {" ".join(path) for path, _ in commands()}
    blocks = re.findall(r"(?ms)^```text\n(.*?)^```", text["command line"])
    assert [
        line for block in blocks for line in block.splitlines() if len(line) > 78
    ] == []  # as in tests/house/test_documents.py
    mapped = {each.__tablename__ for name in orm.__all__ if isinstance(each := getattr(orm, name), type)}
    assert set(re.findall(r"(?m)^### (\w+)$", text["views"])) == mapped
    marks = {mark for page in PAGES for mark in made.MARK.findall(page.read_text(encoding="utf-8"))}
    assert marks == made.GENERATED.keys()


def wrong(line: str) -> str | None:
    """Return what is wrong with a line that calls `msgtx`; the values of its arguments are not looked at."""
    words = shlex.split(line, comments=True)
    path: tuple[str, ...] = ()
    while len(words) > 1 and (*path, words[1]) in COMMANDS:
        path = (*path, words.pop(1))
    found = COMMANDS[path]
    takes = isinstance(found, click.Group) and not hasattr(found, "_default")
    if takes and len(words) > 1 and not words[1].startswith("-"):
        return f"no command {words[1]!r} of {' '.join(('msgtx', *path))}"
    default = getattr(found, "_default", None)
    known = [found, COMMANDS[*path, default]] if default else [found]
    options = [option for each in (command, *known) for option in each.params]
    there = {name for option in options for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    words = words[: words.index("--")] if "--" in words else words  # what follows is for another program
    missing = [word for word in words[1:] if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in there]
    return f"no option {missing[0]} of {' '.join(('msgtx', *path))}" if missing else None


def calls(text: str) -> list[str]:
    """Return what lines of a shell call `msgtx` with."""
    lines = text.replace("\\\n", " ").splitlines()  # a line that ends with a backslash goes on
    parts = [part for line in lines for part in re.split(r"\||&&|\$\(", line.split(" #")[0])]
    # An assignment or a field of cron, then spaces: each text is read in one way only, whatever its length.
    pattern = r"\s*(?:(?:[A-Z_\d]+=\S+|[*/\d]+) +)*(?:\.venv/bin/)?(msgtx( .*)?)$"
    found = (re.match(pattern, part.rstrip(") ")) for part in parts)
    return [match[1] for match in found if match]


LINES: Final = [(each.name, call) for each in snippets("console", "sh") for call in calls(each.text)]
SPANS: Final = [
    (page.relative_to(ROOT).as_posix(), span)
    for page in PAGES
    for span in re.findall(r"`(msgtx [a-z][^`]*)`", re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("place", "line"), [*LINES, *SPANS])
def test_a_command_that_a_page_names_exists(place: str, line: str) -> None:
    assert wrong(line) is None, place


def test_a_wrong_command_would_be_noticed() -> None:
    assert len(LINES) > 30
    assert wrong("msgtx topics make orders") == "no command 'make' of msgtx topics"
    assert wrong("msgtx topics create orders --partition 6") == "no option --partition of msgtx topics create"
    assert wrong("msgtx offsets orders --time earliest") is None


def test_the_functions_of_sql_have_these_arguments(connection: Connection) -> None:
    """As they are written in a call: `timestamp => …` is a syntax error."""
    text = section((ROOT / "docs/reference/sql.md").read_text(encoding="utf-8"), "## Functions")
    for name in re.findall(r"(?m)^### (\w+)$", text):
        told = {each: row[1] for row in rows(section(text, f"### {name}"))[1:] for each in code(row[0])}
        found = connection.execute(
            """select quote_ident(a.name), format_type(a.kind, null)
               from pg_proc p cross join lateral unnest(p.proargnames, p.proargtypes::oid[]) a(name, kind)
               where p.pronamespace = 'msgtx'::regnamespace and p.proname = %s and a.kind is not null""",
            [name],
        ).fetchall()
        full = {"timestamp with time zone": "timestamptz", "timestamp with time zone[]": "timestamptz[]"}
        assert told == {each: full.get(kind, kind) for each, kind in found}, name


# ── Kafka ──


def canonical(name: str) -> str:
    return name.strip("*").replace(".", "_") + ("*" if name.endswith("*") else "")


def porting_of_settings() -> dict[str, str]:
    """Return the pattern of each row's names, and what stands beside it."""
    found: dict[str, str] = {}
    for heading in (
        "## Settings with Kafka's name",
        "## Settings that have a counterpart",
        "## Settings without a meaning here",
    ):
        for names, here in rows(section(PORTING, heading))[1:]:
            for name in code(names):
                assert canonical(name) not in found, name
                found[canonical(name)] = here
    return found


@pytest.mark.parametrize("library", KAFKA)
def test_each_setting_of_kafkas_clients_has_a_counterpart_or_a_reason(library: str) -> None:
    told = porting_of_settings()
    missing = {
        name
        for name in KAFKA[library]["settings"].split()
        if not any(fnmatch.fnmatchcase(canonical(name), pattern) for pattern in told)
    }
    assert missing == set()


@pytest.mark.parametrize("kind", [ProducerConfig, ConsumerConfig])
@pytest.mark.parametrize("library", KAFKA)
def test_an_error_for_a_setting_of_kafkas_clients_guesses_no_name(library: str, kind: type[Any]) -> None:
    refusals = {}
    for name in KAFKA[library]["settings"].split():
        try:
            resolve(kind, {name: None})
        except errors.ConfigError as error:
            refusals[name] = str(error)
    assert {name: told for name, told in refusals.items() if "nearest" in told} == {}


def test_a_setting_that_the_page_names_is_one_of_kafkas() -> None:
    names = {canonical(name) for kafka in KAFKA.values() for name in kafka["settings"].split()}
    names |= {canonical(name) for name in KAFKA_NAMES}
    assert {pattern for pattern in porting_of_settings() if not fnmatch.filter(names, pattern)} == set()


def test_the_counterparts_are_those_of_the_library() -> None:
    table = rows(section(PORTING, "## Settings that have a counterpart"))[1:]
    known = OF_CLIENTS | {one.name for one in TOPIC}
    others = {"sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "keepalives", "hostaddr", "msgtx"}
    values = {"all", "range", "roundrobin", "crc32", "murmur2", "murmur2_random", "consistent_random", "read_committed"}
    named = {word for _, here in table for word in code(here) if re.fullmatch(r"[a-z_]\w+", word)}
    assert named <= known | others | values | {"default_toast_compression"}


CALLS: Final = {
    "## Calls of a producer": ("Producer", "KafkaProducer", "AIOKafkaProducer"),
    "## Calls of a consumer": ("Consumer", "KafkaConsumer", "AIOKafkaConsumer"),
    "## Calls of an administrator": ("AdminClient", "KafkaAdminClient", "AIOKafkaAdminClient"),
}


@pytest.mark.parametrize("heading", CALLS)
def test_each_call_of_kafkas_clients_is_there_once(heading: str) -> None:
    table = rows(section(PORTING, heading))[1:]
    for column, (library, kind) in enumerate(zip(KAFKA, CALLS[heading], strict=True)):
        told = [name for row in table for name in code(row[column])]
        assert sorted(told) == sorted(KAFKA[library][kind].split()), kind
    assert all(row[3] for row in table)


def test_each_call_of_a_message_is_there_once() -> None:
    table = rows(section(PORTING, "## A message"))[1:]
    assert sorted(name for row in table for name in code(row[0])) == sorted(KAFKA["confluent-kafka"]["Message"].split())


OBJECTS: Final[dict[str, Any]] = {
    "client": msgtx.Client,
    "client.snapshots": Snapshots,
    "client.topics": TopicsAdmin,
    "client.admin": Admin,
    "client.admin.groups": GroupsAdmin,
    "client.admin.partitions": PartitionsAdmin,
    "client.admin.producers": ProducersAdmin,
    "client.admin.shares": SharesAdmin,
    "client.admin.spark": SparkAdmin,
    "client.admin.transactions": TransactionsAdmin,
    "producer": msgtx.Producer,
    "consumer": msgtx.Consumer,
    "tx": msgtx.Transaction,
    "record": msgtx.Record,
    "aio": aio,
    "orm": orm,
    "msgtx": msgtx,
    "msgtx.console": console,
}
SPANS_OF_CODE: Final = sorted(
    {
        (page.relative_to(ROOT).as_posix(), path)
        for page in PAGES
        for span in re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8")))
        for path in re.findall(r"(?<![\w.-])((?:client|producer|consumer|tx|record|orm|aio|msgtx)(?:\.\w+)+)\(", span)
    }
)


@pytest.mark.parametrize(("page", "path"), SPANS_OF_CODE)
def test_a_call_that_a_page_names_exists(page: str, path: str) -> None:
    owner, _, name = path.rpartition(".")
    if owner == "msgtx" and name in {"publish", "read", "value_json", "note_place"}:  # functions of SQL
        return
    assert hasattr(OBJECTS[owner], name), page


# ── why it is exactly once ──


def test_the_counts_of_tests_are_those_of_the_tests() -> None:
    """They say "at least", and not much less than there are."""
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    there = {
        "tests": sum(len(re.findall(r"(?m)^(?:async )?def test_", text)) for text in tests),
        "planted bugs": len(all_mutants()),
        "orders in which": sum(int(most) for text in tests for most in re.findall(r"\bat_least=(\d+)", text)),
        "places where": sum(map(sum, BOUNDARIES.values())),
        "kinds of anomaly": len(Name),
    }
    text = (ROOT / "docs/why-exactly-once.md").read_text(encoding="utf-8")
    told = {row[1]: int(row[0].replace(",", "")) for row in rows(section(text, "## What is tested"))[1:]}
    for what, count in there.items():
        (said,) = (number for words, number in told.items() if words.startswith(what))
        assert said <= count <= 1.25 * said, f"{what}: {count}"
    assert len(told) == len(there)
    assert f"in {len(BOUNDARIES)} programs" in text
