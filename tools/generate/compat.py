"""The tables of docs/reference/compat.md."""

from itertools import groupby

from msgtx import errors
from msgtx.compat.confluent_kafka import KafkaError, administration, differences, settings
from msgtx.compat.confluent_kafka.error import code_of


def effects(_: str) -> list[str]:
    """Return the table of settings with an effect."""
    names = sorted({*settings.PASSED_ON, *settings.DONE_HERE})
    others = {name: [each for each, one in settings.SYNONYMS.items() if one == name] for name in names}
    rows = []
    for name in names:
        spelled = ", ".join(f"`{each}`" for each in (name, *others[name]))
        rows.append(f"| {spelled} | {here(settings.meaning_of(name))} |")
    return ["| setting | here |", "|---|---|", *rows]


def ignored(_: str) -> list[str]:
    """Return the table of settings without an effect, by reason."""
    names = sorted(settings.IGNORED.split(), key=lambda name: (settings.meaning_of(name), name))
    rows = [
        f"| {', '.join(f'`{name}`' for name in each)} | {here(why.removeprefix('no effect: '))} |"
        for why, each in groupby(names, key=settings.meaning_of)
    ]
    return ["| setting | instead |", "|---|---|", *rows]


def calls(_: str) -> list[str]:
    """Return the table of calls."""
    return ["| call | here |", "|---|---|", *(f"| `{call}` | {told} |" for call, told in differences.CALLS)]


def general(_: str) -> list[str]:
    """Return what differs for all."""
    return [f"- {each}" for each in differences.GENERAL]


def codes(_: str) -> list[str]:
    """Return the code of each error."""
    found: dict[str, list[str]] = {}
    for name, kind in errors.BY_NAME.items():
        code = code_of(kind)
        known = KafkaError(code).name()
        if code not in {KafkaError._FAIL, KafkaError._FATAL}:
            found.setdefault(known, []).append(name)
    rows = [f"| `{name}` | {', '.join(f'`{each}`' for each in kinds)} |" for name, kinds in sorted(found.items())]
    return ["| `KafkaError` | of msgtx |", "|---|---|", *rows]


def topic_settings(_: str) -> list[str]:
    """Return the settings of topics."""
    known = ", ".join(f"`{name}`" for name in settings.TOPIC_SETTINGS)
    others = ", ".join(f"`{name}`" for name in administration.WITHOUT_EFFECT.split())
    return [f"With an effect: {known}.", "", f"Accepted without one: {others}."]


def here(text: str) -> str:
    """Return a text of docs/porting.md with links that lead from this page."""
    return text.replace("](", "](../")
