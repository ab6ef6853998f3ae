"""The jobs of `msgtx spark`, each in the module of its name."""
