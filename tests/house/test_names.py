"""What is public is listed in `tests/house/surface.txt`, and generated files are as `make generate` writes them."""

import importlib.metadata
import subprocess
import sys

import msgtx
from msgtx import aio, metrics, orm, otel


def test_a_room_has_the_names_that_it_shows() -> None:
    """`tests/house/surface.txt` lists them, with their arguments."""
    for room in (msgtx, aio, metrics, orm, otel):
        assert list(room.__all__) == sorted(room.__all__)
        assert all(hasattr(room, name) for name in room.__all__)
    assert dir(msgtx) == sorted([*msgtx.__all__, "__version__", "aio", "errors", "metrics", "orm"])
    assert msgtx.__version__ == importlib.metadata.version("msgtx")


def test_generated_files_are_as_they_would_be_written() -> None:
    done = subprocess.run([sys.executable, "-m", "tools.generate", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
