"""Programs behind commands: the main job, and the measurements."""
