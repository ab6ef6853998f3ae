"""Roles with a few rights, for a test."""

from collections.abc import Sequence
from typing import cast

from msgtx.database.pool import Engine
from msgtx.database.schema import rights
from msgtx.database.schema.privileges import ALL_TOPICS, Resource, Right
from msgtx.database.throwaway import Throwaway
from msgtx.errors import ConfigError

Can = str | tuple[str, str]


class Roles:
    """Makes roles. Each call returns the URL with which a new one logs in."""

    def __init__(self, server: Throwaway, own: str, url: str) -> None:
        self._server, self._own, self._url = server, own, url

    def __call__(
        self,
        *,
        can: Can | Sequence[Can],
        groups: str | Sequence[str] = (),
        transactional_ids: str | Sequence[str] = (),
    ) -> str:
        """Make a role with just these rights. Returns the URL with which it logs in to the test's database.

        `can`: a right and the topics that it covers (`("produce", "orders")`, `("consume", "orders*")`), several of these,
        or a right on all topics (`"observe"`). `groups` and `transactional_ids`: those that it may use; none named: all.
        Raise `ConfigError` for a right that there is not, or if the server's role may create no roles.
        """
        wanted = [
            *map(_right, _listed(can)),
            *((Right.CONSUME, Resource.GROUP, name) for name in _several(groups)),
            *((Right.PRODUCE, Resource.TRANSACTIONAL_ID, name) for name in _several(transactional_ids)),
        ]
        role, url = self._server.create_role(self._url)
        with Engine(self._own, pool_size=1) as engine, engine.transaction() as connection:
            for right, resource, name in wanted:
                rights.grant(connection, role, can=right, topic=name, resource=resource)
        return url


def _listed(can: Can | Sequence[Can]) -> Sequence[Can]:
    is_one = isinstance(can, str) or (can[0] in set(Right) and can[1:] and can[1] not in set(Right))
    return cast("Sequence[Can]", [can] if is_one else can)


def _several(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _right(can: Can) -> tuple[Right, Resource, str]:
    right, topics = (can, ALL_TOPICS) if isinstance(can, str) else can
    if right not in set(Right):
        raise ConfigError(f"a role can {', '.join(Right)}, not {right!r}", name="can")
    return Right(right), Resource.TOPIC, topics
