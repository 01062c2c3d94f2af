"""An engine process that does not keep to the protocol: ``python tests/live/liar.py HOW``, in place of the real one."""

from __future__ import annotations

import os
import sys
import time

from molt.core.engine_protocol import Decoded
from molt.live.messages import CALLS, REPLIES, Pipe, Reply


def main(how: str) -> None:
    """Greet, and then answer the first call as ``how`` says; or not even that."""
    pipe = Pipe(0, 1)
    if how == "does not greet":
        time.sleep(600)
    if how == "ends at once":
        sys.exit(3)
    if how == "refuses":
        pipe.send(REPLIES, Reply(0, failure="InputError", reason="no such thing"))
        sys.exit(2)
    pipe.send(REPLIES, Reply(0))
    number = pipe.receive(CALLS).number
    match how:
        case "is silent":
            time.sleep(600)
        case "ends":
            sys.exit(3)
        case "closes its pipe":
            os.close(1)
            time.sleep(600)
        case "speaks another language":
            os.write(1, b"\x05\0\0\0hello")
        case "boasts":
            os.write(1, (1 << 31).to_bytes(4, "little"))
        case "answers in part":
            os.write(1, b"\x40\0\0\0{")
            time.sleep(600)
        case "answers another call":
            pipe.send(REPLIES, Reply(number + 1, is_done=True))
        case "leaves the result out":
            pipe.send(REPLIES, Reply(number))
        case "answers with words":
            body = f'{{"number":{number},"is_done":"perhaps"}}'.encode()
            os.write(1, len(body).to_bytes(4, "little") + body)
        case "counts below nothing":
            body = f'{{"number":{number},"is_done":true,"held_bytes":-1}}'.encode()
            os.write(1, len(body).to_bytes(4, "little") + body)
        case "fails in its own way":
            pipe.send(REPLIES, Reply(number, failure="InputError", reason="no such rung"))
        case "answers for another":
            pipe.send(REPLIES, Reply(number, decoded=Decoded(1, (1,), ("a",), None)))
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
