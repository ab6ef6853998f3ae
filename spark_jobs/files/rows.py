"""The rows of files as a sink takes them: the roles of their columns, and refused rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql import types as spark_types

from msgtx import errors
from msgtx.spark_jobs.files.csv_rows import Dialect, read_csv
from msgtx.spark_jobs.reading.columns import found_column
from msgtx.spark_jobs.runtime.folder import File

# Settings that a user's session may have changed: unreadable files are skipped, values that do not fit become null.
_STRICT: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",  # of lines, and of records: by rows alone, large ones are too many
}
_WHOLE_NUMBERS: Final = (
    spark_types.ByteType,
    spark_types.ShortType,
    spark_types.IntegerType,
    spark_types.LongType,
    spark_types.StringType,
)
_TIMES: Final = (
    spark_types.TimestampType,
    spark_types.TimestampNTZType,
    spark_types.DateType,
    spark_types.StringType,
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a record's parts; `headers` by name. `value` None: the whole row as JSON (a JSON file's line)."""

    key: str | None = None
    value: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> Iterator[str]:
        """Return the columns that must be there."""
        yield from filter(None, (self.key, self.value, self.partition, self.timestamp, *self.headers.values()))


WHOLE_ROW: Final = Columns()


def read_files(
    spark: SparkSession, files: Sequence[File], kind: str, *, columns: Columns, options: Mapping[str, str]
) -> DataFrame:
    """Return the rows of files as a sink takes them.

    Raise `InvalidRequest` for a missing column or one of a wrong type, and for files of several kinds; `ConfigError` for
    senseless options. An error in a row fails the task that reads it.
    """
    strict = _strict(spark, files)
    uris = [file.uri for file in files]
    match kind:
        case "csv":
            return _read_csv(strict, uris, columns=columns, dialect=Dialect.parse(options))
        case "json":
            return _read_json(strict, uris, columns=columns, options=_without_encoding(kind, options))
        case _:
            return _read_parquet(strict, uris, columns=columns, options=_without_encoding(kind, options))


def _strict(spark: SparkSession, files: Sequence[File]) -> SparkSession:
    """Return a session in which nothing is passed by, and a file is read by one task, in order."""
    made = spark.newSession()
    largest = str(max(file.size for file in files) + 1)
    settings = {
        **_STRICT,
        "spark.sql.session.timeZone": spark.conf.get("spark.sql.session.timeZone") or "UTC",
        "spark.sql.files.maxPartitionBytes": largest,
        "spark.sql.files.openCostInBytes": largest,
    }
    for name, value in settings.items():
        made.conf.set(name, value)
    return made


def _without_encoding(kind: str, options: Mapping[str, str]) -> Mapping[str, str]:
    if {"encoding", "charset"} & {name.lower() for name in options}:
        raise errors.ConfigError(f"an encoding is for CSV files: {kind} files are UTF-8")
    return options


# ── CSV ──


def _read_csv(spark: SparkSession, uris: Sequence[str], *, columns: Columns, dialect: Dialect) -> DataFrame:
    rows = read_csv(spark, uris, dialect)
    known = _required(rows, columns, uris)
    whole = F.to_json(F.struct(*(F.col(_quoted(name)) for name in rows.columns)), {"ignoreNullFields": "false"})
    # CSV has no null: an empty field is an empty text in the row's JSON, and no key, no value and no number.
    return _selected(rows, columns, whole, lambda name: F.nullif(F.col(_quoted(known[name])), F.lit("")))


# ── JSON lines ──


def _read_json(spark: SparkSession, uris: Sequence[str], *, columns: Columns, options: Mapping[str, str]) -> DataFrame:
    """Return JSON lines: the value is the line as it is, without a parse that could change its numbers."""
    lines = spark.read.options(**options).text(list(uris)).where(F.trim("value") != "")
    wrong = F.raise_error(F.concat(F.lit("a line is no JSON: "), F.substring(F.make_valid_utf8("value"), 1, 80)))
    known = lines.withColumn("parsed", F.try_parse_json("value")).withColumn(
        "value",
        F.when(F.col("parsed").isNull() | ~F.is_valid_utf8("value"), wrong.cast("string")).otherwise(F.col("value")),
    )
    if any(columns.names()):
        known = known.withColumn("members", F.from_json("value", "map<string,string>"))
    return _selected(known, columns, F.col("value"), _member)


def _member(name: str) -> Column:
    """Return a member of a line as text; NULL where it is missing. Case does not count."""
    found = F.map_filter("members", lambda key, _: F.lower(key) == name.lower())
    several = F.concat(F.lit(f"a line has several members {name}: "), F.substring("value", 1, 80))
    return F.when(F.size(found) > 1, F.raise_error(several).cast("string")).otherwise(F.get(F.map_values(found), F.lit(0)))


# ── Parquet ──


def _read_parquet(spark: SparkSession, uris: Sequence[str], *, columns: Columns, options: Mapping[str, str]) -> DataFrame:
    schemas = {uri: spark.read.options(**options).parquet(uri).schema for uri in uris}
    first = _kinds(schemas[uris[0]])
    for uri, schema in schemas.items():
        if _kinds(schema) != first:
            raise errors.InvalidRequest(
                f"{uri} has the columns {', '.join(_kinds(schema).values())}, and {uris[0]} has {', '.join(first.values())}:"
                " import files of other columns by themselves"
            )
    rows = spark.read.options(**options).parquet(*uris)
    known = _required(rows, columns, uris)
    whole = F.to_json(F.struct(*(F.col(_quoted(name)) for name in rows.columns)))
    return _selected(rows, columns, whole, lambda name: F.col(_quoted(known[name])))


def _kinds(schema: spark_types.StructType) -> dict[str, str]:
    return {each.name.lower(): f"{each.name.lower()} {each.dataType.simpleString()}" for each in schema.fields}


# ── columns ──


def _required(rows: DataFrame, columns: Columns, uris: Sequence[str]) -> dict[str, str]:
    """Return which column each name means. Raise `InvalidRequest` for one that is not there, or of a wrong type."""
    known = {name: found_column(name, rows.columns) for name in columns.names()}
    missing = [name for name, found in known.items() if found is None]
    if missing and rows.columns != ["nothing"]:
        raise errors.InvalidRequest(
            f"there is no column {', '.join(missing)} in {uris[0]}{' and others' if len(uris) > 1 else ''}: it has "
            f"{', '.join(rows.columns)}"
        )
    found = {name: each or rows.columns[0] for name, each in known.items()}
    for name, kinds, expected in (
        (columns.partition, _WHOLE_NUMBERS, "a whole number"),
        (columns.timestamp, _TIMES, "a timestamp, a date or a text"),
    ):
        if name is not None and not isinstance(rows.schema[found[name]].dataType, kinds):
            kind = rows.schema[found[name]].dataType.simpleString()
            raise errors.InvalidRequest(f"column {name} is {kind}, and is to be {expected}: change it in the files")
    return found


def _selected(rows: DataFrame, columns: Columns, whole: Column, of: Callable[[str], Column]) -> DataFrame:
    selected = [(_as_text(rows, columns.value, of) if columns.value else whole).alias("value")]
    if columns.key:
        selected.append(_as_text(rows, columns.key, of).alias("key"))
    if columns.partition:
        selected.append(of(columns.partition).cast("int").alias("partition"))
    if columns.timestamp:
        selected.append(of(columns.timestamp).cast("timestamp").alias("timestamp"))
    if columns.headers:
        headers = [
            F.struct(F.lit(name).alias("key"), _as_text(rows, column, of).cast("binary").alias("value"))
            for name, column in columns.headers.items()
        ]
        selected.append(F.array(*headers).alias("headers"))
    return rows.select(*selected)


def _as_text(rows: DataFrame, name: str, of: Callable[[str], Column]) -> Column:
    """Return a column as bytes: binary and text as they are, structures as JSON, all else as Spark writes it."""
    column = found_column(name, rows.columns)
    match None if column is None else rows.schema[column].dataType:
        case spark_types.BinaryType() | spark_types.StringType():
            return of(name)
        case spark_types.StructType() | spark_types.ArrayType() | spark_types.MapType():
            return F.to_json(of(name))
        case _:
            return of(name).cast("string")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
