"""Programs behind commands: the main job, and what measures a database."""
