"""JSON files from outside: the content, or one line that says why there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from molt.errors import LadderError


def read_json(path: Path) -> Any:
    """The content of a JSON file; ``LadderError`` if it is missing, not UTF-8 or not JSON."""
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise LadderError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise LadderError(f"{path}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
    except json.JSONDecodeError as error:
        raise LadderError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise LadderError(f"{path}: not JSON: nested too deeply") from None
