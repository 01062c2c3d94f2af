"""The command line ``molt``; nothing imports it."""
