"""The app of `msgtx.django`. It has no models: `migrate` leaves msgtx's schema alone."""

from django.apps import AppConfig
from django.core import checks

from msgtx.django.checks import check_database, check_schema


class MsgtxConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Registers the system checks."""

    name = "msgtx.django"
    label = "msgtx"
    verbose_name = "msgtx"

    def ready(self) -> None:
        """Register the system checks."""
        checks.register(check_database)
        checks.register(check_schema, checks.Tags.database)
