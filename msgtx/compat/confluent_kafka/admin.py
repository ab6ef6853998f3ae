"""`confluent_kafka.admin` over msgtx: the original's names, and its `AdminClient` above msgtx's calls."""

from typing import Any

from confluent_kafka import admin as _original

from msgtx.compat.confluent_kafka.administration import Administration

globals().update({name: value for name, value in vars(_original).items() if not name.startswith("__")})


_Original: Any = _original.AdminClient


class AdminClient(_Original, Administration):  # type: ignore[misc]  # as above
    """The original's `AdminClient`; its calls are answered by the database."""
