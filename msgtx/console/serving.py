"""A server of the console's own."""

import socket

import uvicorn

from msgtx.console.guard import Guard


class ConsoleServer(uvicorn.Server):
    """Ends the streams of live updates before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, app: Guard) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was asked, and end."""
        self._app.end_streams()
        await super().shutdown(sockets)
