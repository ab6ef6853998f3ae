"""Tests of msgtx.django: an app of Django's in this process, on the module's database."""
