"""msgtx for Django: `publish` in `atomic()`, workers as management commands, system checks, a test case.

Add "msgtx.django" to INSTALLED_APPS. MSGTX = {"database": "default"} names the alias of the database that holds msgtx.
"""

from msgtx.django.database import client
from msgtx.django.publish import publish
from msgtx.django.worker import WorkerCommand

__all__ = ["WorkerCommand", "client", "publish"]
