"""Addresses of Kafka clusters, as a mirror takes them: shown without a secret.

`kafka://host:9092,other:9092?option=value`. Options are librdkafka's properties, such as `security.protocol`. The option
`config` names a file with further ones, one `option=value` a line: a password is better kept there, because other users of
a machine see the arguments of a command.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from msgtx.errors import ConfigError

SCHEME: Final = "kafka"
KAFKA_FORM: Final = "kafka://host:9092,other:9092?option=value"
SERVERS: Final = "bootstrap.servers"
FILE: Final = "config"
# What a mirror sets: with other values it would lose or double records.
OURS: Final = frozenset({
    "acks", "request.required.acks", "auto.offset.reset", "delivery.report.only.error", "enable.auto.commit",
    "enable.auto.offset.store", "enable.gapless.guarantee", "enable.idempotence", "enable.partition.eof", "group.id",
    "group.instance.id", "group.protocol", "isolation.level", "message.max.bytes", "message.send.max.retries", "partitioner",
    "retries", "transactional.id",
})  # fmt: skip
_SERVER: Final = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?$")


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """The brokers of a cluster, and librdkafka's properties for it. Its text has no property: one may be a secret."""

    servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """Return the address without its options."""
        return f"{SCHEME}://{self.servers}"


def is_kafka(url: str) -> bool:
    """Return whether this is the address of a Kafka cluster."""
    return url.lower().startswith(f"{SCHEME}:")


def parse_kafka(url: str) -> KafkaAddress:
    """Read an address. Raise `ConfigError`, without any text that may be a password."""
    if not is_kafka(url):
        raise _refused(f"does not read {KAFKA_FORM}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _refused(f"does not read {KAFKA_FORM}") from None
    if "@" in parts.netloc:
        raise _refused(f"has an @ in a host: user and password are options, sasl.username and sasl.password ({KAFKA_FORM})")
    if parts.path.strip("/") or parts.fragment:
        raise _refused(f"has a path: it names brokers and options only ({KAFKA_FORM})")
    options = dict(_once(_given(parts.query), "the Kafka address"))
    if (path := options.pop(FILE, None)) is not None:
        options = _file(Path(path).expanduser()) | options
    servers = parts.netloc or options.get(SERVERS, "")
    options.pop(SERVERS, None)
    if ours := sorted(OURS & options.keys()):
        raise ConfigError(f"the Kafka option {ours[0]} is the mirror's own to set: leave it out", name=ours[0])
    if not all(_SERVER.match(each) for each in servers.split(",")):
        raise _refused(f"names no broker, or one that is none: it reads {KAFKA_FORM}")
    return KafkaAddress(servers, options)


def _given(query: str) -> Iterator[tuple[str, str]]:
    """Yield the options of an address. A `+` stays a `+`: a password may have one."""
    for option in query.split("&") if query else ():
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise _refused(f"has an option without a value: it reads {KAFKA_FORM}")
        yield unquote(name), unquote(value)


def _file(path: Path) -> dict[str, str]:
    """Read a file of properties. Empty lines and those that begin with # or ! are comments."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the file of Kafka options {str(path)!r} cannot be read: {reason}", name=FILE) from None
    return dict(_once(_properties(path, lines), f"{str(path)!r}"))


def _properties(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and text[0] not in "#!":
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"{str(path)!r}, line {number}: it does not read option=value", name=FILE)
            yield name.strip(), value.strip()


def _once(options: Iterable[tuple[str, str]], where: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for name, value in options:
        if name in seen:
            raise ConfigError(f"{where} has the option {name} twice", name=name)
        seen.add(name)
        yield name, value


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"the Kafka address {reason}", name="url")
