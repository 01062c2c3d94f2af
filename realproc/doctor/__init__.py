"""``molt doctor``: what this machine offers, and what would make results wrong on it."""
