"""The console: records, transactions and groups in a browser. Needs the extra: `pip install msgtx[console]`.

`app(client)` is an ASGI application, for `msgtx console` and for a server of the user's own.
"""

from msgtx.console.application import app

__all__ = ["app"]
