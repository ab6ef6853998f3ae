"""The shape of a call: a database function, its arguments, and the columns of its answer."""

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

# A row of an answer: a named tuple, or, of a function that returns one value, a tuple of it.
Row = TypeVar("Row", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Function(Generic[Row]):
    """A database function: its arguments as SQL writes them (`name type, …`), a row of its answer, and the call.

    The statement asks for the columns of the answer by their names, so the database may add columns and a client goes on.
    `flushed`: false for a call whose SQL transaction has synchronous_commit off.
    """

    name: str
    arguments: str
    row: type[Row]
    flushed: bool = True

    statement: str = field(init=False)

    def __post_init__(self) -> None:
        """Write the SQL that calls it."""
        # Names in full: the search_path is the user's, and may hold a type or a function of the same name.
        pairs = [argument.split(" ") for argument in self.arguments.split(", ") if argument]
        values = {name: f"%s::{kind if '.' in kind else f'pg_catalog.{kind}'}" for name, kind in pairs}
        source = ""
        if not self.flushed:
            # A value of the call needs the setting, so it comes first with any plan of the join. After it, it would
            # take back the flush that the function itself may ask for.
            source = "(select pg_catalog.set_config('synchronous_commit', 'off', true) offset 0) relaxed(mode), lateral "
            name, value = values.popitem()
            values[name] = f"case relaxed.mode when 'off' then {value} end"
        given = ", ".join(f'"{name}" => {value}' for name, value in values.items())
        columns = ", ".join(f'f."{name}"' for name in getattr(self.row, "_fields", ())) or "f.*"
        statement = f"select {columns} from {source}msgtx.{self.name}({given}) f"  # noqa: S608 - names are constants of this package
        object.__setattr__(self, "statement", statement)

    def rows(self, answer: list[tuple[Any, ...]]) -> list[Row]:
        """Return an answer of the database as rows with names."""
        make = getattr(self.row, "_make", None)
        return cast(list[Row], answer if make is None else list(map(make, answer)))

    def first(self, count: int) -> "Function[Row]":
        """Return the call with the first arguments only; the others have their defaults."""
        return replace(self, arguments=", ".join(self.arguments.split(", ")[:count]))

    def unflushed(self) -> "Function[Row]":
        """Return the call with synchronous_commit off."""
        return replace(self, flushed=False)
