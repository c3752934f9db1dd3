"""Is the allocator that was asked for found, preloaded, and proved?"""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest

from tests.launching import launch
from wellfed.host.allocator import (
    allocator_in_use,
    allocators_of,
    elf_of,
    find_allocator,
    parse_elf,
    why_not_preloaded,
)
from wellfed.model.errors import LaunchError

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def elf(*, wide: bool = True, machine: int = 62, loader: bool = True) -> bytes:
    """Write the smallest ELF header with one program header."""
    order, size = "little", 64 if wide else 52
    header = bytearray(256)
    header[:6] = b"\x7fELF" + bytes((2 if wide else 1, 1))
    header[18:20] = machine.to_bytes(2, order)
    if wide:
        header[32:40] = size.to_bytes(8, order)
        header[54:58] = (56).to_bytes(2, order) + (1).to_bytes(2, order)
    else:
        header[28:32] = size.to_bytes(4, order)
        header[42:46] = (32).to_bytes(2, order) + (1).to_bytes(2, order)
    header[size : size + 4] = (3 if loader else 1).to_bytes(4, order)
    return bytes(header)


def installed(name: str) -> str:
    """Return the library of this host, or skip: the test needs the package that the remedy names."""
    try:
        return find_allocator(name, sys.executable, ENVIRONMENT)
    except LaunchError as absent:
        pytest.skip(f"{absent.message}: {absent.remedy}")


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("loader", [True, False])
def test_headers_tell_machine_and_loader(wide, loader):
    """Class, byte order, machine, and whether there is a loader that could preload."""
    found = parse_elf(elf(wide=wide, machine=183, loader=loader))

    assert found is not None
    assert found.kind == (2 if wide else 1, 1, 183)
    assert found.dynamic is loader


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"MZ" + bytes(200)])
def test_what_is_no_elf_is_unknown(content):
    """No guess about anything else, a cut header included."""
    assert parse_elf(content) is None


def test_a_library_of_another_machine_is_passed_over(tmp_path):
    """The loader would ignore it with a message; the one that fits is further on."""
    for folder, machine in (("arm", 183), ("right", 62)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libjemalloc.so.2").write_bytes(elf(machine=machine))
    (tmp_path / "job").write_bytes(elf())

    found = find_allocator(
        "jemalloc", str(tmp_path / "job"), {"LD_LIBRARY_PATH": f"{tmp_path}/arm:{tmp_path}/right"}
    )

    assert found == f"{tmp_path}/right/libjemalloc.so.2"


def test_conda_is_looked_into(tmp_path):
    """$CONDA_PREFIX/lib comes before the system's folders."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtcmalloc.so.4").write_bytes(elf())
    (tmp_path / "job").write_bytes(elf())

    found = find_allocator("tcmalloc", str(tmp_path / "job"), {"CONDA_PREFIX": str(tmp_path)})

    assert found == f"{tmp_path}/lib/libtcmalloc.so.4"


def test_none_that_fits_names_the_package(tmp_path, monkeypatch):
    """Not found, or only for another machine: what to install."""
    monkeypatch.setattr(
        "wellfed.host.allocator._folders", lambda environment: iter([str(tmp_path)])
    )
    (tmp_path / "job").write_bytes(elf())

    with pytest.raises(LaunchError, match="not found") as absent:
        find_allocator("jemalloc", str(tmp_path / "job"), {})
    (tmp_path / "libjemalloc.so.2").write_bytes(elf(machine=183))
    with pytest.raises(LaunchError, match="another machine") as other:
        find_allocator("jemalloc", str(tmp_path / "job"), {})

    assert "libjemalloc2" in absent.value.remedy
    assert "libjemalloc2" in other.value.remedy


def test_a_script_is_judged_by_its_interpreter(tmp_path):
    """#!/usr/bin/env NAME is looked up in PATH; a script of a script too; a loop ends."""
    (tmp_path / "static").write_bytes(elf(loader=False))
    (tmp_path / "static").chmod(0o755)
    for name, line in (
        ("direct", f"#!{tmp_path}/static -x"),
        ("by-env", "#!/usr/bin/env static"),
        ("loop", f"#!{tmp_path}/loop"),
    ):
        (tmp_path / name).write_text(line + "\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path)}

    found = [why_not_preloaded(str(tmp_path / name), environment) for name in ("direct", "by-env")]

    assert all(why is not None and "statically" in why for why in found)
    assert elf_of(str(tmp_path / "loop"), environment) is None


def test_maps_name_the_library():
    """Only what a file name says counts."""
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/x86_64-linux-gnu/libjemalloc.so.2\n"
        "7f01-7f02 rw-p 00000000 00:00 0 \n"
        "7f02-7f03 r-xp 00000000 08:01 13 /opt/with space/libtcmalloc_minimal.so.4.5.10\n"
        "7f03-7f04 r-xp 00000000 08:01 14 /usr/lib/libc.so.6\n"
    )

    assert allocators_of(maps) == (
        "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
        "/opt/with space/libtcmalloc_minimal.so.4.5.10",
    )


def test_this_process_can_be_asked():
    """Without a preload Python has glibc's."""
    if "LD_PRELOAD" in os.environ:
        pytest.skip("an allocator may be preloaded into the tests themselves")

    assert allocator_in_use(os.getpid()) is None


@pytest.mark.parametrize("name", ["jemalloc", "tcmalloc"])
def test_the_command_really_has_it(name):
    """Its own /proc/self/maps shows the library."""
    library = installed(name)

    done = launch("-q", "--malloc", name, "--", "cat", "/proc/self/maps")

    mapped = allocators_of(done.stdout.decode())
    assert [os.path.realpath(path) for path in mapped] == [os.path.realpath(library)]


def test_jemalloc_is_tuned_and_a_persons_tuning_is_kept():
    """Arenas for the loader's threads and purging in the background; MALLOC_CONF that was set stays."""
    installed("jemalloc")
    show = ("-q", "--malloc", "jemalloc", "--", "sh", "-c", "echo $MALLOC_CONF")

    ours, theirs = launch(*show), launch(*show, MALLOC_CONF="narenas:3")

    assert b"background_thread:true" in ours.stdout
    assert theirs.stdout == b"narenas:3\n"


def test_the_report_proves_it(tmp_path):
    """A second after the start the process is asked what it has mapped."""
    library = installed("jemalloc")

    done = launch(
        "-q",
        "--ranks",
        "1",
        "--malloc",
        "jemalloc",
        "--report",
        str(tmp_path / "r.json"),
        "--",
        "sleep",
        "1.3",
    )
    found = json.loads((tmp_path / "r.json").read_text())

    assert done.returncode == 0
    assert os.path.realpath(found["ranks"][0]["allocator"]) == os.path.realpath(library)


def test_a_static_command_is_said_to_take_no_preload(tmp_path):
    """The launch goes on, and says that the preload does nothing."""
    installed("jemalloc")
    static = pathlib.Path("/sbin/ldconfig")
    if not static.exists() or why_not_preloaded(str(static), ENVIRONMENT) is None:
        pytest.skip("needs a static program: /sbin/ldconfig is one on Debian")

    done = launch("--malloc", "jemalloc", "--", str(static), "--version")

    assert done.returncode == 0
    assert b"statically" in done.stderr
