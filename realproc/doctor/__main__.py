"""``python -m realproc.doctor``: the same as ``molt doctor``."""

from molt.program import run_command
from realproc.doctor.checks import command

run_command(command)
