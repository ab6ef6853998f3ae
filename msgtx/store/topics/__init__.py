"""Topics, and what is removed from them."""
