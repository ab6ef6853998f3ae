"""Put the facade in the place of confluent_kafka: in this process, and in the Python processes that it starts."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

# On the search path its module `confluent_kafka` comes before the original, calls `put`, and so becomes the facade.
FOLDER: Final = Path(__file__).with_name("search-path")
ORIGINAL: Final = "confluent_kafka"
FACADE: Final = "msgtx.compat.confluent_kafka"
# Modules of the original whose classes make connections. Its other modules, such as `schema_registry`, stay as they are.
MODULES: Final = ("admin", "aio", "serializing_producer", "deserializing_consumer")


def put() -> ModuleType:
    """Replace the original's clients, in its own modules, by those of the facade. Return its module."""
    outside = [each for each in sys.path if Path(each or ".").resolve() != FOLDER.resolve()]
    searched, sys.path[:] = sys.path[:], outside
    try:
        original, facade = importlib.import_module(ORIGINAL), importlib.import_module(FACADE)
        compiled = importlib.import_module(f"{ORIGINAL}.cimpl")
    finally:
        sys.path[:] = searched
    for name in facade.__all__:
        for module in (original, compiled):
            if hasattr(module, name):
                setattr(module, name, getattr(facade, name))
    for name in MODULES:
        module = importlib.import_module(f"{FACADE}.{PLACES.get(name, name)}")
        sys.modules[f"{ORIGINAL}.{name}"] = module
        setattr(original, name, module)
    return original


PLACES: Final = {"serializing_producer": "serializing", "deserializing_consumer": "serializing"}


def inherit() -> None:
    """Have the Python processes that this one starts find the facade, too."""
    paths = [str(FOLDER), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
