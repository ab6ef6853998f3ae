"""Write the copies of what is declared once: see `tools.generate.__main__`."""
