"""Makes the recordings in ``scenarios/traces``: ``python -m benchmarks.recordings spike|ramp|rivals [FOLDER]``.

Other programs (allocators, and one that reads a file again and again) share a memory control group limited to 64 MiB,
and ``molt record`` samples it ten times a second. No process of Molt is in the group: the recorded budget is what one
could have used there. The pressure is genuine: the kernel reclaims, makes programs wait, and kills among rivals that
want more than there is. It needs a machine on which such a group can be made (``molt doctor`` says whether it can).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from molt.units import MIB, SECOND_NS
from realproc.kernel import limited_group
from realproc.kernel.guard import Guard
from realproc.kernel.pressure import Allocator, AllocatorSpec, Targets
from realproc.kernel.record import command

LIMIT_BYTES = 64 * MIB
DURATION_NS = 40 * SECOND_NS
FILE_BYTES = 48 * MIB
TRACES = Path(__file__).resolve().parent.parent / "scenarios" / "traces"


@dataclass(frozen=True, slots=True)
class Program:
    """An allocator: pairs of second and MiB to hold from then on; its rate; its kind of pages."""

    held: tuple[tuple[float, int], ...]
    rate_mib_per_s: int | None = None
    huge: bool = False

    @property
    def targets(self) -> Targets:
        return tuple((round(at_s * SECOND_NS), mib * MIB) for at_s, mib in self.held)


def tooth(begin_s: float, step_s: float, step_mib: int, steps: int) -> tuple[tuple[float, int], ...]:
    """A rise in steps, and the fall to nothing at its end."""
    rise = [(begin_s + i * step_s, step_mib * (i + 1)) for i in range(steps)]
    return (*rise, (begin_s + steps * step_s, 0))


RECORDINGS: dict[str, tuple[Program, ...]] = {
    "spike": (Program(((0, 8), (8, 36), (14, 50), (20, 8))),),
    "ramp": (Program(((0, 4), (4, 58), (36, 4)), rate_mib_per_s=2),),
    "rivals": (
        Program(tuple(step for i in range(4) for step in tooth(1 + 9.7 * i, 1, 5, 8)), huge=True),
        Program(tuple(step for i in range(6) for step in tooth(2 + 6.1 * i, 1, 7, 4)), rate_mib_per_s=30),
    ),
}


def main(name: str, folder: Path) -> None:
    """Make one recording."""
    with ExitStack() as stack:
        guard = stack.enter_context(Guard(LIMIT_BYTES))
        allocators = [stack.enter_context(allocator(program, guard)) for program in RECORDINGS[name]]
        reader = stack.enter_context(reading(guard))
        guard.check()
        begin_ns = time.monotonic_ns()
        for follow, program in zip(allocators, RECORDINGS[name], strict=True):
            follow(program.targets, begin_ns)
        command(folder / f"recorded_{name}.csv", DURATION_NS, SECOND_NS // 10, None, guard.group.folder)
        print(f"kills: {guard.group.read().kills}; the reader ended with {reader.poll()}", file=sys.stderr)


@contextmanager
def allocator(program: Program, guard: Guard) -> Iterator[Callable[[Targets, int], None]]:
    """An allocator in the group, which the kernel kills first; yields the function that has it follow a trace."""
    rate = None if program.rate_mib_per_s is None else program.rate_mib_per_s * MIB
    with Allocator(AllocatorSpec(rate, program.huge, guard.group.folder, oom_score=1000)) as child:
        guard.child(child.pid)
        yield child.follow


@contextmanager
def reading(guard: Guard) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the group that reads a file, for which there is no room beside what the others take."""
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(
            file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED
        )  # so that the reader is charged for the pages
        reader = subprocess.Popen(  # noqa: S603 (a program of our own making)
            ["/bin/sh", "-c", f"sleep 1; while :; do cat {file.name} > /dev/null; sleep 0.05; done"]
        )
        guard.child(reader.pid)
        limited_group.add(guard.group.folder, reader.pid)
        try:
            yield reader
        finally:
            reader.kill()
            reader.wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else TRACES)
