"""The calls of the library: functions of the database that its code names."""

import re
from typing import Any, Final

from msgtx.declared.function import Function
from msgtx.generated import calls
from tests.house.sources import python_files, text_of

FUNCTIONS: Final[dict[str, Function[Any]]] = {
    function.name: function for function in vars(calls).values() if isinstance(function, Function)
}
_NAMED: Final = {name for path in python_files() for name in re.findall(r"\bcalls\.([A-Z_]+)\b", text_of(path))}
CALLED: Final = frozenset(name for name in FUNCTIONS if name.upper() in _NAMED)
