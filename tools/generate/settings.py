"""What follows from `msgtx/declared/settings.py`: types, configurations, columns, bounds in SQL, tables of the reference."""

import itertools
import textwrap
from enum import Enum
from typing import Final

from msgtx.declared import kafka
from msgtx.declared.settings import (
    CLIENT,
    CONSUMER,
    INSTALLATION,
    MIRROR,
    PRODUCER,
    SHARE_CONSUMER,
    SHARE_GROUP,
    TOPIC,
    WORKER,
    Kind,
    Setting,
    Settings,
)
from msgtx.types import Isolation

KEPT: Final = {"topic": TOPIC, "share_group": SHARE_GROUP}  # in a table of the database
SUBJECTS: Final = KEPT | {
    "client": CLIENT,
    "producer": PRODUCER,
    "consumer": CONSUMER,
    "share_consumer": SHARE_CONSUMER,
    "worker": WORKER,
    "mirror": MIRROR,
    "installation": INSTALLATION,
}
TABLES: Final = SUBJECTS | {
    "worker_alone": tuple(one for one in WORKER if one.name != "batch"),
    "workers_producer": tuple(one for one in PRODUCER if one.of_workers),
    "workers_consumer": tuple(one for one in CONSUMER if one.of_workers),
    "producer_alone": tuple(one for one in PRODUCER if not one.of_workers),
    "consumer_alone": tuple(one for one in CONSUMER if not one.of_workers),
}
GIVEN: Final = {Kind.DURATION: "Duration", Kind.SIZE: "Size", Kind.NUMBER: "int", Kind.FLAG: "bool", Kind.TEXT: "str"}
HELD: Final = GIVEN | {Kind.DURATION: "int", Kind.SIZE: "int"}


def words(choices: tuple[object, ...]) -> str:
    return f"Literal[{', '.join(repr(each.value if isinstance(each, Enum) else each) for each in choices)}]"


def kind(one: Setting, kinds: dict[Kind, str]) -> str:
    """Return the type of a setting."""
    if one.choices and isinstance(one.choices[0], Isolation):
        return "Isolation" + (f" | {words(one.choices)}" if kinds is GIVEN else "")
    if one.kind is Kind.CHOICE:
        return one.name.title().replace("_", "")
    in_seconds = kinds is HELD and one.kind is Kind.DURATION and not one.name.endswith("_ms")
    return ("float" if in_seconds else kinds[one.kind]) + (" | None" if one.default is None else "")


def aliases(_: str) -> list[str]:
    """Return a name for each set of words."""
    found = {}
    for one in itertools.chain(*SUBJECTS.values()):
        if one.choices and not isinstance(one.choices[0], Isolation):
            given = [*one.choices, *one.synonyms]
            found[kind(one, {})] = words((*given, *(int(each) for each in given if each.lstrip("-").isdigit())))
    return [f"{name} = {meaning}" for name, meaning in found.items()]


def given(subject: str) -> list[str]:
    """Return what a caller may give, for a typed dictionary."""
    return [f"{one.name}: {kind(one, GIVEN)}" for one in TABLES[subject]]


def held(subject: str) -> list[str]:
    """Return what a configuration holds, with its defaults."""
    lines = []
    for one in TABLES[subject]:
        default = f"{one.initial:_}" if one.initial.__class__ is int else repr(one.initial)
        default = f"Isolation.{one.initial.name}" if isinstance(one.initial, Isolation) else default
        lines.append(f"{one.name}: {words(one.choices) if one.synonyms else kind(one, HELD)} = {default}")
    return lines


def stored(subject: str) -> Settings:
    """Return the settings that a view has as they are stored: those with a default."""
    return tuple(one for one in TABLES[subject] if one.default is not None)


def mapped(subject: str) -> list[str]:
    """Return the attributes of a mapped view."""
    return [f"{one.name}: Mapped[{HELD.get(one.kind, 'str')}]" for one in stored(subject)]


def shown(subject: str) -> list[str]:
    """Return columns of a view, and a comma."""
    return wrapped(listed("s.{}", stored(subject)) + ",")


def assigned(subject: str) -> list[str]:
    """Return the assignment of what a row `g` of the table has."""
    return wrapped(f"({listed('{}', TABLES[subject])}) = (select {listed('g.{}', TABLES[subject])}")


def listed(form: str, table: Settings) -> str:
    return ", ".join(form.format(one.name) for one in table)


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 110, break_on_hyphens=False)


def bounds(_: str) -> list[str]:
    """Return what SQL knows of settings, a row for each."""
    lines = []
    for subject, table in KEPT.items():
        for one in table:
            limits = f"{one.least}, {one.most}" if HELD.get(one.kind) == "int" else "null, null"
            choices = f"array[{', '.join(repr(str(each)) for each in one.choices)}]" if one.choices else "null"
            lines.append(f"('{subject}', '{one.name}', {limits}, {choices}),")
    return [*lines[:-1], lines[-1].rstrip(",")]


def counterparts(_: str) -> list[str]:
    """Return the table of Kafka's names."""
    found = {one.name: one.kafka for one in itertools.chain(*SUBJECTS.values()) if one.kafka}
    rows = [f"| {', '.join(f'`{each}`' for each in kafka)} | `{name}` |" for name, kafka in found.items()]
    return ["| Kafka | here |", "|---|---|", *rows]


def elsewhere(_: str) -> list[str]:
    """Return the table of Kafka's settings that have a counterpart."""
    return ["| Kafka | here |", "|---|---|", *beside(kafka.ELSEWHERE)]


def meaningless(_: str) -> list[str]:
    """Return the table of Kafka's settings without a meaning."""
    return ["| Kafka | why |", "|---|---|", *beside(kafka.MEANINGLESS)]


def beside(table: kafka.Table) -> list[str]:
    return [f"| {', '.join(f'`{name}`' for name in names.split())} | {text} |" for names, text in table]


def reference(subject: str) -> list[str]:
    """Return the table of a page."""
    dash, named = "–", any(one.kafka for one in TABLES[subject])
    rows = [["setting", "default", *(["Kafka's name"] if named else []), ""]]
    for one in TABLES[subject]:
        default = dash if one.default in {None, ""} else f"`{one.default}`".replace("True", "true").replace("False", "false")
        kafka = [f"`{one.kafka[0]}`" if one.kafka else dash] if named else []
        rows.append([f"`{one.name}`", default, *kafka, one.says])
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
