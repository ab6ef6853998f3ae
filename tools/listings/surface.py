"""What is public, as a list to review: calls, fields, settings, SQL, commands. Errors are in `sentences`."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import click

import msgtx
from msgtx import aio, client, metrics, orm, otel, snapshot, testing
from msgtx.admin.groups import GroupsAdmin
from msgtx.admin.mirrors import MirrorsAdmin
from msgtx.admin.partitions import PartitionsAdmin
from msgtx.admin.producers import ProducersAdmin
from msgtx.admin.shares import SharesAdmin
from msgtx.admin.spark import SparkAdmin
from msgtx.admin.topics import TopicsAdmin
from msgtx.admin.transactions import TransactionsAdmin
from msgtx.cli.commands import command
from msgtx.testing import plugin
from tools.generate.calls import calls
from tools.generate.settings import SUBJECTS

# What a client leads to, without a name of its own there.
ADMIN: Final = (
    client.Admin, snapshot.Snapshots, GroupsAdmin, MirrorsAdmin, PartitionsAdmin, ProducersAdmin, SharesAdmin, SparkAdmin,
    TopicsAdmin, TransactionsAdmin,
)  # fmt: skip
# What other rooms call, until it gets a name that shows it.
INNER: Final = (
    "answering begin begins_here committing holdings rides runtime subscription"
    " send_at_once settle stopping transaction_answers transaction_offsets undo waiting_records written_by"
)


def text() -> str:
    """Return the list."""
    lines: list[str] = []
    for room in (msgtx, aio, metrics, orm, otel, testing):
        for name in sorted(room.__all__):
            lines += shown(f"{room.__name__}.{name}", getattr(room, name))
    lines += [f"fixture of msgtx.testing: {name}" for name in sorted(vars(plugin)) if name.startswith("msgtx_")]
    for kind in ADMIN:
        lines += shown(kind.__name__, kind)
    lines += [f"settings of {name}: {' '.join(one.name for one in table)}" for name, table in SUBJECTS.items()]
    for call in calls():
        given = ", ".join(f"{name} {kind}" for name, kind in call.arguments.items())
        answer = ", ".join(f"{name} {kind}" for name, kind in call.columns.items()) or call.value
        lines.append(f"sql: {call.name}({given}) → {answer}")
    return "\n".join([*lines, *commands(command, "msgtx"), ""])


def shown(name: str, value: Any) -> Iterator[str]:
    """Yield a call with its arguments; of a class its fields, and each of its methods."""
    if not isinstance(value, type):
        yield f"{name}{arguments(value)}" if callable(value) else name
        return
    methods = [one for one in public(value) if inspect.isroutine(getattr(value, one, None))]
    yield f"{name}: {' '.join(one for one in public(value) if one not in methods)}".rstrip(": ")
    for one in sorted(methods):
        yield from shown(f"{name}.{one}", getattr(value, one))


def public(kind: type) -> list[str]:
    """Return the public names of a class and its instances: fields in their order come first."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith("msgtx") and each is not orm.Topic.__base__]
    found = [one for each in reversed(ours) for one in [*inspect.get_annotations(each), *getattr(each, "_fields", ())]]
    found += re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", "".join(map(inspect.getsource, ours)))
    found += [one for each in ours for one in vars(each)]
    return [one for one in dict.fromkeys(found) if not one.startswith("_") and one not in INNER.split()]


def arguments(call: Any) -> str:
    """Return what a call takes, without types."""
    signature = inspect.signature(call)
    given = [one.replace(annotation=one.empty) for one in signature.parameters.values() if not one.name.startswith("_")]
    plain = signature.replace(parameters=given, return_annotation=signature.empty)
    awaited = " awaited" if inspect.iscoroutinefunction(call) else ""
    return re.sub(r" at 0x\w+", "", str(plain)).replace("(self, ", "(").replace("(self)", "()") + awaited


def commands(found: click.Command, path: str) -> Iterator[str]:
    """Yield a line for each command, with its arguments and options."""
    if isinstance(found, click.Group):
        for name in found.list_commands(click.Context(found)):
            if (inner := found.get_command(click.Context(found), name)) is not None:
                yield from commands(inner, f"{path} {name}")
    else:
        yield " ".join([path, *(" ".join([*one.opts, *one.secondary_opts]) for one in found.params)])
