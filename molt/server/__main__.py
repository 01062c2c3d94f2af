"""``python -m molt.server``: the same as ``molt serve``."""

from molt.program import run_command
from molt.server.command import command

run_command(command)
