"""State files and locks: private, atomic, and never fooled by a process id that is used again."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from host.fleet import FleetError
from host.fleet.state import FleetRegistry, FleetState, StationRecord, cache_root


def state(name: str = "f", **changes: object) -> FleetState:
    station = StationRecord(name="attn", roles=("attn:0-3",), url="ws://127.0.0.1:9", pid=7, state="ready")
    whole = FleetState(
        name=name,
        token="secret",
        supervisor_pid=os.getpid(),
        started_at=1.0,
        plan="trisplit",
        model="m",
        kernels="fast",
        threads=1,
        transport="auto",
        coalesce=True,
        is_up=True,
        stations=(station,),
    )
    return msgspec.structs.replace(whole, **changes)


@pytest.fixture
def registry(tmp_path: Path) -> FleetRegistry:
    found = FleetRegistry(tmp_path)
    found.folder.mkdir(parents=True)
    return found


def test_the_cache_is_where_the_environment_says() -> None:
    assert cache_root({"AEONFLOW_HOME": "/data/a"}) == Path("/data/a")
    assert cache_root({"HOME": "/home/u"}) == Path("/home/u/.cache/aeonflow")


def test_a_written_state_is_read_back_and_only_its_owner_may_read_it(registry: FleetRegistry) -> None:
    registry.write(state())
    assert registry.read("f") == state()
    assert registry.names() == ["f"]
    path = registry.folder / "f.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in registry.folder.iterdir()] == ["f.json"]  # no temporary file is left


def test_an_unknown_fleet_is_refused_with_the_names_there_are(registry: FleetRegistry) -> None:
    registry.write(state("day"))
    registry.write(state("night"))
    with pytest.raises(FleetError, match=r"no fleet 'x' was started here \(known: day, night\)"):
        registry.read("x")


def test_a_torn_state_file_is_named(registry: FleetRegistry) -> None:
    (registry.folder / "f.json").write_text('{"name": "f"')
    with pytest.raises(FleetError, match=r"f\.json cannot be read: .*remove it"):
        registry.read("f")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65, "a b"])
def test_a_fleet_name_is_a_plain_file_name(registry: FleetRegistry, name: str) -> None:
    with pytest.raises(FleetError, match="letters, digits"):
        registry.read(name)


def test_two_supervisors_cannot_hold_one_name(registry: FleetRegistry) -> None:
    with registry.lock("f"):
        assert registry.is_alive("f")
        with (
            pytest.raises(FleetError, match="fleet 'f' runs already; stop it with: aeonflow down --fleet f"),
            registry.lock("f", patience_s=0.0),
        ):
            pass
        with registry.lock("g"):
            assert registry.is_alive("g")
    assert not registry.is_alive("f")


HOLDER = """
import sys
from pathlib import Path
from host.fleet.state import FleetRegistry
with FleetRegistry(Path(sys.argv[1])).lock("f"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_supervisor_that_was_killed_no_longer_holds_its_name(registry: FleetRegistry, tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert registry.is_alive("f")
        holder.kill()
    registry.write(state(supervisor_pid=os.getpid()))  # its id now belongs to a process that lives: us
    assert not registry.is_alive("f")
    with pytest.raises(FleetError, match=r"fleet 'f' is not running: its supervisor \(pid \d+\) died"):
        registry.read_live("f")
