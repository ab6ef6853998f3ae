"""What is public is listed in `tests/house/surface.txt`, and generated files are as `make generate` writes them."""

import importlib.metadata
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import click
import pytest

import msgtx
from msgtx import aio, metrics, orm, otel
from msgtx.cli.commands.find import command as find_command
from msgtx.generated import calls


def test_a_room_has_the_names_that_it_shows() -> None:
    """`tests/house/surface.txt` lists them, with their arguments."""
    for room in (msgtx, aio, metrics, orm, otel):
        assert list(room.__all__) == sorted(room.__all__)
        assert all(hasattr(room, name) for name in room.__all__)
    assert dir(msgtx) == sorted([*msgtx.__all__, "__version__", "aio", "errors", "metrics", "orm"])
    assert msgtx.__version__ == importlib.metadata.version("msgtx")


@pytest.mark.long
def test_generated_files_are_as_they_would_be_written() -> None:
    done = subprocess.run([sys.executable, "-m", "tools.generate", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ── twins: calls that do the same through another door ──

# What one twin has and the other one has not: an awaited call has asyncio's timeouts, and returns what a callback gets.
OWN: Final = {
    "Producer.send": {"on_delivery"},
    "Producer.send_offsets_to_transaction": {"timeout"},
    "django.publish": {"session", "using"},
}


def twins() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    for name in aio.__all__:
        one, other = getattr(aio, name), getattr(msgtx, name, None)
        if inspect.isfunction(one) and callable(other):
            yield name, one, other
        elif inspect.isclass(one) and inspect.isclass(other) and one is not other:
            for method in dir(one):
                found = getattr(one, method), getattr(other, method, None)
                if not method.startswith("_") and all(map(inspect.isfunction, found)):
                    yield f"{name}.{method}", *found
    pytest.importorskip("django")
    from msgtx.django.publish import publish

    yield "django.publish", publish, msgtx.publish


def arguments_of(function: Callable[..., Any], without: set[str]) -> dict[str, tuple[object, object]]:
    found = inspect.signature(function).parameters.values()
    return {each.name: (each.kind, each.default) for each in found if each.name not in without}


def test_twins_take_the_same_arguments() -> None:
    seen = set()
    for name, one, other in twins():
        own = OWN.get(name, set())
        assert arguments_of(one, own) == arguments_of(other, own), name
        seen.add(name)
    assert {"publish", "connect", "Producer.send", "Client.process_into", "Consumer.poll"} | OWN.keys() <= seen


def test_find_takes_the_same_arguments_in_python_in_sql_and_as_a_command() -> None:
    python = set(inspect.signature(msgtx.Client.find).parameters) - {"self", "stop", "progress"}
    sql = {each.split()[0] for each in calls.FIND.arguments.split(", ")}
    options = {each.name for each in find_command.params if isinstance(each, click.Option)}
    assert {{"json_field": "json", "max_records": "limit"}.get(name, name) for name in sql - {"key_bytes"}} == python
    assert {{"json_": "json", "at": "offset"}.get(str(name), name) for name in options} >= python - {"topic"}
