"""Readings of a machine: each layout is read correctly, what is missing is ``None``, and trials leave no traces."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realproc.kernel import control_groups, machine
from realproc.kernel.control_groups import LimitTrial, read_groups, try_limit
from realproc.kernel.machine import Pressure, read_machine
from tests.realproc.trees import COMMON, GIB, HYBRID, V1, V2, kernel, plant

SECOND_NS = 1_000_000_000

__all__ = ["kernel"]


def groups_of(root: Path) -> list[Path]:
    """Every folder below the control groups."""
    return sorted(path for path in (root / "sys/fs/cgroup").rglob("*") if path.is_dir())


# --- the files that every kernel has ---


def test_an_ordinary_machine_is_read(tmp_path: Path) -> None:
    """Processor, memory, load, and of the environment only what is watched."""
    found = read_machine(plant(tmp_path, COMMON))
    assert found.processor == machine.Processor(
        name="Made-up 9000",
        cores=2,
        cores_allowed=3,
        flags=("avx2", "avx512_vnni", "avx512f", "fpu"),
        governor="powersave",
        driver="acpi-cpufreq",
        on_battery=True,
        autogroup=True,
    )
    assert found.memory == machine.MachineMemory(
        total_bytes=8 * GIB,
        available_bytes=4 * GIB,
        swap_bytes=2 * GIB,
        swap_free_bytes=GIB,
        overcommit=0,
        transparent="madvise",
        huge_page_bytes=2 * 2**20,
        reserved_huge_pages=3,
    )
    assert found.load_1min == 0.25
    assert found.environment == {"OMP_WAIT_POLICY": "active"}


def test_arm_names_its_flags_otherwise(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd asimddp\n"})
    found = machine.read_processor(tmp_path)
    assert found.flags == ("asimd", "asimddp", "fp")
    assert found.name is None


def test_a_machine_without_any_of_the_files_has_nothing(tmp_path: Path) -> None:
    """As on macOS: everything unknown, no control groups, no pressure."""
    found = read_machine(tmp_path)
    assert found.processor == machine.Processor()
    assert found.memory == machine.MachineMemory()
    assert found.pressure is None
    assert found.load_1min is None
    assert found.environment is None
    assert (found.groups.layout, found.groups.memory) == ("none", None)


def test_the_system_is_asked_for_what_the_files_do_not_say(tmp_path: Path) -> None:
    found = machine.completed(read_machine(tmp_path))
    assert found.processor.cores
    assert found.memory.total_bytes
    assert found.memory.available_bytes
    assert found.memory.swap_bytes is not None


@pytest.mark.parametrize("text", ["", "\n", "processor", ":", "flags:", "\0\0", "model name\t:\n"])
def test_an_odd_cpuinfo_is_not_known(tmp_path: Path, text: str) -> None:
    plant(tmp_path, {"proc/cpuinfo": text})
    assert machine.read_processor(tmp_path) == machine.Processor()


def test_sizes_without_their_unit_are_not_known(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/meminfo": "MemTotal: 12\nMemAvailable: x kB\nSwapTotal: -1 kB\nHugepagesize:\n"})
    assert machine.read_memory(tmp_path) == machine.MachineMemory()


@pytest.mark.parametrize(
    ("text", "mode"), [("[always] madvise never", "always"), ("always", None), ("[]", None)]
)
def test_the_mode_of_huge_pages_stands_in_brackets(tmp_path: Path, text: str, mode: str | None) -> None:
    plant(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})
    assert machine.read_memory(tmp_path).transparent == mode


def test_a_mains_supply_is_no_battery(tmp_path: Path) -> None:
    supply = "sys/class/power_supply/AC"
    plant(tmp_path, {f"{supply}/type": "Mains\n", f"{supply}/status": "Discharging\n"})
    assert machine.read_processor(tmp_path).on_battery is None


# --- pressure ---


def test_windows_are_those_that_the_kernel_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the capability, a kernel refuses all but multiples of two seconds."""

    def set_trigger(file: Path, window_ns: int) -> None:
        assert file == tmp_path / "proc/pressure/memory"
        if window_ns % (2 * SECOND_NS):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(machine, "set_trigger", set_trigger)
    plant(tmp_path, COMMON)
    expected = Pressure(1.25, tuple(s * SECOND_NS for s in (2, 4, 10)), "Invalid argument")
    assert machine.read_pressure(tmp_path) == expected


def test_the_trigger_is_in_the_words_of_the_kernel(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.touch()
    machine.set_trigger(file, SECOND_NS)
    assert file.read_bytes() == b"some 100000 1000000\0"


@pytest.mark.parametrize("text", ["", "some", "some avg10=x avg60=0.00", "full avg10=0.00 total=0"])
def test_pressure_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    """Nothing is written to such a file."""
    plant(tmp_path, {"proc/pressure/memory": text})
    assert machine.read_pressure(tmp_path) is None
    assert (tmp_path / "proc/pressure/memory").read_text() == text


# --- control groups ---


@pytest.mark.parametrize(("tree", "layout"), [(V1, "v1"), (HYBRID, "hybrid")])
def test_v1_limits_of_ancestors_count(tmp_path: Path, tree: dict[str, str], layout: str) -> None:
    """The own group has no limit, the one above it has: clean file pages count as room."""
    found = read_groups(plant(tmp_path, tree))
    folder = tmp_path / "sys/fs/cgroup/memory"
    assert (found.layout, found.memory) == (layout, "v1")
    assert found.memory_folders == (str(folder / "me/inner"), str(folder / "me"), str(folder))
    assert found.limit_bytes == 2 * GIB
    assert found.room_bytes == GIB + GIB // 2
    assert found.quota_cores == 1.5


def test_v2_limits_are_read(tmp_path: Path) -> None:
    found = read_groups(plant(tmp_path, V2))
    assert (found.layout, found.memory) == ("v2", "v2")
    assert found.limit_bytes == 3 * GIB
    assert found.room_bytes == 2 * GIB + 4096
    assert found.quota_cores == 0.5


def test_a_v2_without_memory_controller_is_none(tmp_path: Path) -> None:
    bare = {name: text.replace("memory", "") for name, text in V2.items() if "controllers" in name}
    found = read_groups(plant(tmp_path, V2, bare))
    assert (found.layout, found.memory, found.limit_bytes) == ("v2", None, None)
    assert try_limit(found) == LimitTrial(False, "no memory controller")


def test_a_limit_of_nothing_is_a_limit(tmp_path: Path) -> None:
    plant(tmp_path, V2, {"sys/fs/cgroup/user.slice/molt.scope/memory.max": "0\n"})
    found = read_groups(tmp_path)
    assert (found.limit_bytes, found.room_bytes) == (0, 0)


@pytest.mark.parametrize("inner", ["/docker/abc", "/docker/abc/.."])
def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path, inner: str) -> None:
    """The path in /proc is that of the host, the mount shows what is below it."""
    mounted = V1["proc/self/mountinfo"].replace(" / /sys/fs/cgroup/memory", f" {inner} /sys/fs/cgroup/memory")
    plant(tmp_path, V1, {"proc/self/mountinfo": mounted, "proc/self/cgroup": "2:memory:/docker/abc\n"})
    found = read_groups(tmp_path)
    assert found.memory_folders == (str(tmp_path / "sys/fs/cgroup/memory"),)


def test_a_group_that_is_not_mounted_is_sought_at_the_top(tmp_path: Path) -> None:
    plant(tmp_path, V1, {"proc/self/cgroup": "2:memory:/gone\n1:cpu,cpuacct:/../up\n"})
    found = read_groups(tmp_path)
    assert found.memory_folders == (str(tmp_path / "sys/fs/cgroup/memory"),)
    assert found.quota_cores is None


@given(
    st.dictionaries(
        st.sampled_from(sorted({*COMMON, *HYBRID, *V2} - {"proc/pressure/memory"})),
        st.binary(max_size=40)
        | st.sampled_from([b"max", b"9" * 40, b"\xff\xfe", b"- - -", b"0::/\0", b"0-"]),
        max_size=6,
    )
)
def test_garbage_is_never_an_exception(
    tmp_path_factory: pytest.TempPathFactory, damage: dict[str, bytes]
) -> None:
    root = plant(tmp_path_factory.mktemp("machine"), COMMON, HYBRID, V2)
    for name, content in damage.items():
        (root / name).write_bytes(content)
    assert read_machine(root).groups.layout in ("v1", "v2", "hybrid", "none")


# --- trials ---


def test_a_limit_is_tried_in_the_own_group(tmp_path: Path, kernel: None) -> None:
    groups = read_groups(plant(tmp_path, V1))
    before = groups_of(tmp_path)
    assert try_limit(groups) == LimitTrial(True, groups.memory_folders[0])
    assert groups_of(tmp_path) == before


def test_v2_is_tried_where_the_controller_is_handed_down(tmp_path: Path, kernel: None) -> None:
    groups = read_groups(plant(tmp_path, V2))
    before = groups_of(tmp_path)
    assert try_limit(groups) == LimitTrial(True, str(tmp_path / "sys/fs/cgroup/user.slice"))
    assert groups_of(tmp_path) == before


def test_v2_that_hands_nothing_down_is_reported(tmp_path: Path, kernel: None) -> None:
    kept = {name: "\n" for name in V2 if name.endswith("subtree_control")}
    trial = try_limit(read_groups(plant(tmp_path, V2, kept)))
    assert not trial.settable
    assert trial.detail.endswith("does not hand the memory controller down")


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EROFS])
def test_the_first_refusal_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(control_groups, "make_group", refuse)
    groups = read_groups(plant(tmp_path, V1))
    expected = f"{groups.memory_folders[0]}: {os.strerror(reason)}"
    assert try_limit(groups) == LimitTrial(False, expected)


@pytest.mark.parametrize("error", [OSError(errno.EPERM, "Operation not permitted"), KeyboardInterrupt()])
def test_a_group_is_removed_whatever_happens(
    tmp_path: Path, kernel: None, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(file: Path) -> None:
        raise error

    monkeypatch.setattr(control_groups, "set_limit", fail)
    groups = read_groups(plant(tmp_path, V1))
    before = groups_of(tmp_path)
    if isinstance(error, OSError):
        assert "memory.limit_in_bytes: Operation not permitted" in try_limit(groups).detail
    else:
        with pytest.raises(KeyboardInterrupt):
            try_limit(groups)
    assert groups_of(tmp_path) == before


def test_an_ordinary_folder_is_no_control_group(tmp_path: Path) -> None:
    """Where no kernel puts a limit into a new folder, none was set, and the folder is gone again."""
    groups = read_groups(plant(tmp_path, V1))
    before = groups_of(tmp_path)
    assert not try_limit(groups).settable
    assert groups_of(tmp_path) == before


def test_the_real_machine_is_left_as_it_was() -> None:
    """Read once in earnest: what must be known of any machine is, and the trial leaves no group."""
    found = read_machine()
    trial = try_limit(found.groups)
    assert found.processor.cores
    assert found.memory.total_bytes
    assert trial.detail
    for folder in found.groups.memory_folders:
        assert list(Path(folder).glob(f"{control_groups.TRIAL_NAME}-{os.getpid()}")) == []
