"""What this machine offers, and what would make results wrong on it: ``molt doctor``."""
