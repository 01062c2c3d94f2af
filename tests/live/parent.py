"""A process with an engine, for tests that kill it: prints the engine's process id and waits."""

from __future__ import annotations

import time

from molt.live.remote import ChildSpec, RemoteEngine

if __name__ == "__main__":
    engine = RemoteEngine(ChildSpec("pico", "modelled"))
    engine.start()
    print(engine.pid, flush=True)
    time.sleep(600)
