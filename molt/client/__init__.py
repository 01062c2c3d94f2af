"""Clients of a server: the connection, ``molt chat`` and ``molt demo``."""
