"""CSV as Python's csv module reads it (RFC 4180): each field as it was written, or the file is refused.

Spark's own reader ends a row at a line break within quotes, or normalizes it; it takes bytes of another encoding for U+FFFD
and a quote that is never closed for text, all without an error. Here Spark only reads the lines of a file as bytes and
in order, one task to a file, and the task divides them.
"""

import contextlib
import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from msgtx.errors import ConfigError, InvalidRequest

MOST_CHARACTERS: Final = 2**31 - 1  # of a field: the module's own limit is 131,072, and the log has one of its own
# Of one batch of rows on its way to the JVM.
BATCH_ROWS: Final = 5_000
BATCH_CHARACTERS: Final = 8 * 1024 * 1024
HEADER_LINES: Final = (1, 100, 10_000)  # the names of columns may hold line breaks
_WITHIN: Final = re.compile(r"(?<=\r)(?=[^\n])")  # behind a carriage return that ends a line, or stands within quotes
# Options of Spark's reader, in small letters: those that describe the file, and those without an effect here.
_KNOWN: Final = ("sep", "delimiter", "quote", "escape", "encoding", "charset", "header", "nullvalue")
_IMPLIED: Final = {
    "multiline": {"true", "false"},
    "mode": {"failfast"},
    "inferschema": {"false"},
    "enforceschema": {"true", "false"},
    "columnpruning": {"true", "false"},
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a file is written. `null`: the text that stands for no value."""

    separator: str = ","
    quote: str | None = '"'
    escape: str | None = None
    encoding: str = "utf-8"
    header: bool = True
    null: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "Dialect":
        """Read the options of Spark's reader. Raise `ConfigError` for one that is not known, or makes no sense."""
        given = {}
        for name, value in options.items():
            plain = name.lower()
            if plain not in _KNOWN and value.strip().lower() not in _IMPLIED.get(plain, ()):
                raise ConfigError(
                    f"option {name}={value} is not for CSV files here: known are sep, quote, escape, encoding, header and"
                    " nullValue; each row is read whole, and one that is malformed ends the import"
                )
            given[plain] = value
        quote = _character(given, "quote", '"')
        escape = _character(given, "escape", quote)
        header = given.get("header", "true").strip().lower()
        if header not in {"true", "false"}:
            raise ConfigError(f"header is true or false, not {header!r}")
        return cls(
            separator=_character(given, "sep", _character(given, "delimiter", ",")) or ",",
            quote=quote,
            escape=None if escape == quote else escape,
            encoding=_encoding(given.get("encoding", given.get("charset", "utf-8"))),
            header=header == "true",
            null=given.get("nullvalue"),
        )

    def reader(self, lines: Iterable[str]) -> Any:
        """Return the reader that divides lines into rows."""
        return csv.reader(
            lines,
            delimiter=self.separator,
            quotechar=self.quote,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            escapechar=self.escape,
            doublequote=self.escape is None,
            strict=True,
        )


def _character(given: Mapping[str, str], name: str, default: str | None) -> str | None:
    value = given.get(name)
    if value is None:
        return default
    value = {"\\t": "\t", "\\\\": "\\"}.get(value, value)
    if len(value) > 1 or value in {"\r", "\n"} or (not value and name in {"sep", "delimiter"}):
        raise ConfigError(f"{name} is one character, not {given[name]!r}")
    return value or None


def _encoding(name: str) -> str:
    """Return the name of an encoding whose line ends, separators and digits are those of ASCII. Raise `ConfigError`."""
    plain = bytes(range(128))
    try:
        fits = plain.decode(name) == plain.decode("ascii")
    except (LookupError, ValueError):  # it is none, or none of texts
        fits = False
    if not fits:
        raise ConfigError(
            f"{name!r} is no encoding that contains ASCII, like UTF-8, ISO-8859-1 or windows-1252: convert the files first,"
            f" with `iconv -f {name} -t UTF-8`"
        )
    return name


def read_csv(spark: SparkSession, uris: Sequence[str], dialect: Dialect) -> DataFrame:
    """Return the rows of files, each column a text, without those that are empty.

    Raise `InvalidRequest` for a header that names a column twice. Other errors fail the reading task, with `InvalidRequest`:
    a malformed row, another header than the first file's, bytes of another encoding.
    """
    names = _header(spark, uris, dialect)
    if not names:
        return spark.createDataFrame([], "nothing string")
    columns = ", ".join(f"`{name.replace('`', '``')}` string" for name in names)
    return _lines(spark, uris).mapInArrow(lambda batches: rows_of(batches, dialect, names), columns)


def _lines(spark: SparkSession, uris: Sequence[str]) -> DataFrame:
    """Return the lines of files as bytes, each file in one partition and in order: the session sees to that."""
    read = spark.read.option("lineSep", "\n").text(list(uris))
    return read.select(F.col("value").cast("binary").alias("line"), F.col("_metadata.file_path").alias("file"))


def _header(spark: SparkSession, uris: Sequence[str], dialect: Dialect) -> list[str]:
    """Return the names of the columns; none if all files are empty."""
    with _long_fields():
        return _first_names(spark, uris, dialect)


def _first_names(spark: SparkSession, uris: Sequence[str], dialect: Dialect) -> list[str]:
    for uri in uris:
        for most in HEADER_LINES:
            lines = [bytes(row.line) for row in _lines(spark, [uri]).head(most)]
            if not lines:
                break
            try:
                first = next(_records(iter([(uri, lines)]), dialect), None)
            except InvalidRequest:
                if len(lines) < most or most == HEADER_LINES[-1]:
                    raise
                continue
            if first is not None:
                return _checked(uri, first[2]) if dialect.header else [f"_c{at}" for at in range(len(first[2]))]
            if len(lines) < most:
                break
    return []


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """Lift the module's limit, which is one for the process, for the block."""
    before = csv.field_size_limit(MOST_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _checked(uri: str, names: list[str]) -> list[str]:
    """Raise `InvalidRequest` for names that a column cannot be told by."""
    if "" in names:
        raise InvalidRequest(f"{uri}: column {names.index('') + 1} of the header has no name: give it one")
    known: dict[str, str] = {}
    for name in names:
        if name.lower() in known:
            raise InvalidRequest(
                f"{uri}: the header has two columns {known[name.lower()]!r} and {name!r}, case does not count: rename one"
            )
        known[name.lower()] = name
    return names


# ── in a task ──


def rows_of(batches: Iterable[pa.RecordBatch], dialect: Dialect, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of whole files, given by their lines."""
    csv.field_size_limit(MOST_CHARACTERS)  # a worker has it for itself
    rows: list[list[str]] = []
    size = 0
    at_header: str | None = None
    for file, number, row in _records(_chunks(batches), dialect):
        if dialect.header and file != at_header:
            at_header = file
            if row != names:
                raise InvalidRequest(f"{file}: its header is {', '.join(row)}, the first file's is {', '.join(names)}")
            continue
        if len(row) != len(names):
            raise InvalidRequest(
                f"{file}, line {number}: malformed row of {len(row)} fields, there are {len(names)} columns"
            )
        rows.append(row)
        size += sum(map(len, row))
        if len(rows) == BATCH_ROWS or size >= BATCH_CHARACTERS:
            yield _made(rows, dialect, names)
            rows, size = [], 0
    if rows:
        yield _made(rows, dialect, names)


def _made(rows: list[list[str]], dialect: Dialect, names: list[str]) -> pa.RecordBatch:
    columns: Iterable[Sequence[str | None]] = zip(*rows, strict=True)
    if dialect.null is not None:
        columns = [[None if each == dialect.null else each for each in column] for column in columns]
    return pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], names=names)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield lines of one file each."""
    for batch in batches:
        lines = zip(batch.column("file").to_pylist(), batch.column("line").to_pylist(), strict=True)
        for file, each in itertools.groupby(lines, key=lambda pair: pair[0]):
            yield file, [line for _, line in each]


def _records(chunks: Iterator[tuple[str, list[bytes]]], dialect: Dialect) -> Iterator[tuple[str, int, list[str]]]:
    """Yield file, number of the last line, and fields of each row that is not empty. Raise `InvalidRequest`."""
    for file, parts in itertools.groupby(chunks, key=lambda chunk: chunk[0]):
        reader = dialect.reader(_text(file, (lines for _, lines in parts), dialect.encoding))
        try:
            for row in reader:
                if row:
                    yield file, reader.line_num, row
        except csv.Error as error:
            raise InvalidRequest(f"{file}, line {reader.line_num}: malformed row: {error}") from None


def _text(file: str, chunks: Iterable[list[bytes]], encoding: str) -> Iterator[str]:
    """Yield lines with their ends."""
    number = 0
    for lines in chunks:
        try:
            text = b"\n".join(lines).decode(encoding)
        except UnicodeDecodeError as error:
            at = number + 1 + error.object[: error.start].count(b"\n")
            wrong = error.object[error.start : error.end].hex(" ")
            raise InvalidRequest(
                f"{file}, line {at}: the bytes {wrong} are not {encoding}: name the encoding of the file (--encoding)"
            ) from None
        if number == 0:
            text = text.removeprefix("\ufeff")
        number += len(lines)
        for line in text.split("\n"):
            if "\r" in line:
                yield from _WITHIN.split(line + "\n")
            else:
                yield line + "\n"
