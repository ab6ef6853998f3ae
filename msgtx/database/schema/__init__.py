"""The schema: migrations of the tables, functions and views, settings, and the rights of roles."""
