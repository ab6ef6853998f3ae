"""The installation and its server."""
