"""A folder on any file system that Spark knows (local, HDFS, S3), through Hadoop's API in the driver's JVM."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from msgtx.errors import ConfigError
from msgtx.spark_jobs.runtime.connect import require_classic

HIDDEN: Final = ("_", ".")  # Hadoop's convention: readers pass by such names


@dataclass(frozen=True, slots=True)
class File:
    """A file: its full address, bytes, and the time of its last change in milliseconds."""

    uri: str
    size: int
    modified_ms: int


class Folder:
    """A folder by its address or path. Names of its files are relative to it."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        require_classic()
        jvm, context = spark.sparkContext._jvm, spark.sparkContext._jsc
        assert jvm is not None, "a session has its JVM"
        self._spark = spark
        self._jvm: Any = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._settings = context.hadoopConfiguration()
        try:
            path = jvm.org.apache.hadoop.fs.Path(address)
            self._system = path.getFileSystem(self._settings)
            self._path = self._system.makeQualified(path)
        except Exception as error:  # Py4J's or Spark's, by what Java threw
            raise ConfigError(f"{address!r} is no folder that Spark can reach: {_first_line(error)}") from error
        self.uri = str(self._path.toString())
        self.is_local = urlsplit(self.uri).scheme == "file"

    def path(self, name: str) -> str:
        """Return the full address of something in the folder."""
        return f"{self.uri.rstrip('/')}/{name}"

    def below(self, name: str) -> "Folder":
        """Return a folder in this one."""
        return Folder(self._spark, self.path(name))

    def children(self) -> list[str]:
        """Return the names in the folder; none if it is not there."""
        if not self._system.exists(self._path):
            return []
        return [str(found.getPath().getName()) for found in self._system.listStatus(self._path)]

    def read(self, name: str) -> str | None:
        """Return a file's text, or None if there is none."""
        path = self._at(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            content = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return bytes(content).decode()

    def write(self, name: str, text: str) -> None:
        """Write a new file."""
        stream = self._system.create(self._at(name), False)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it is there."""
        self._system.delete(self._at(name), True)

    def rename(self, source: str, target: str) -> bool:
        """Give a folder with something in it a name that is free. Returns False if the name is taken.

        In one step on local disks and HDFS: of two at once, one gets the name. Object stores copy file by file.
        """
        if self.is_local:
            # rename(2) refuses a folder that is not empty. Hadoop looks first, and moves into a folder that came since.
            return _rename_local(_local(self.path(source)), _local(self.path(target)))
        return self._rename_by_hadoop(source, target)

    def _rename_by_hadoop(self, source: str, target: str) -> bool:
        hadoop = self._jvm.org.apache.hadoop.fs
        never = self._gateway.new_array(getattr(hadoop, "Options$Rename"), 1)
        never[0] = getattr(hadoop, "Options$Rename").NONE
        context = hadoop.FileContext.getFileContext(self._system.getUri(), self._settings)
        try:
            context.rename(self._at(source), self._at(target), never)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "FileAlreadyExistsException":
                return False
            raise
        return True

    def files(self, name: str = "") -> list[File]:
        """Return all visible files below, by address."""
        return self._visible(self._at(name) if name else self._path)

    def matching(self) -> list[File]:
        """Return the visible files of this address, which may hold wildcards; those below a folder included."""
        found = self._system.globStatus(self._path)
        return [file for each in found or () for file in self._visible(each.getPath())]

    def _visible(self, root: Any) -> list[File]:
        if self._system.getFileStatus(root).isFile():
            return [_file(self._system.getFileStatus(root))]
        found, prefix = [], str(root.toString()).rstrip("/") + "/"
        walk = self._system.listFiles(root, True)
        while walk.hasNext():
            file = _file(walk.next())
            if not any(part.startswith(HIDDEN) for part in file.uri.removeprefix(prefix).split("/")):
                found.append(file)
        return sorted(found, key=lambda file: file.uri)

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name))


def files_of(spark: SparkSession, addresses: Sequence[str]) -> list[File]:
    """Return the files that addresses mean, once each, by address. Raise `ConfigError` for one that means none."""
    found: dict[str, File] = {}
    for address in addresses:
        files = Folder(spark, address).matching()
        if not files:
            raise ConfigError(f"there is no file at {address}")
        found.update((file.uri, file) for file in files)
    return [found[uri] for uri in sorted(found)]


def _file(status: Any) -> File:
    return File(str(status.getPath().toString()), int(status.getLen()), int(status.getModificationTime()))


def _local(uri: str) -> Path:
    return Path(urlsplit(uri).path if "%" not in uri else unquote(urlsplit(uri).path))


def _rename_local(source: Path, target: Path) -> bool:
    try:
        os.rename(source, target)  # noqa: PTH104 - Path.rename is the same and promises less
    except OSError:
        if target.exists():
            return False
        raise
    return True


def _first_line(error: Exception) -> str:
    cause = getattr(error, "java_exception", None)
    return str(cause.getMessage() if cause is not None else error).splitlines()[0]
