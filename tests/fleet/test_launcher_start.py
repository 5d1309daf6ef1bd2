"""Starting: readiness, the secret, the environment, and every way a start can fail."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from host.fleet import Fleet, FleetError, FleetStation, StationOptions, StationStartError, StationState
from host.fleet.spec import listen_address, station_command, station_environment
from host.plan import StationSpec, parse_roles

from .conftest import MakeFleet, children_of


def proc_text(pid: int, file: str) -> str:
    return Path(f"/proc/{pid}/{file}").read_text()


async def test_a_fleet_is_ready_when_every_station_has_said_so(make_fleet: MakeFleet) -> None:
    async with make_fleet("a", "b", "c") as fleet:
        assert [s.name for s in fleet.stations] == ["a", "b", "c"]
        assert all(s.state is StationState.READY and s.pid > 0 and s.url.startswith("ws://") for s in fleet.stations)
        assert len(set(fleet.urls)) == 3
        assert fleet.stations[0].roles == ("block:0-3",)


async def test_the_secret_is_random_in_a_file_of_its_owner_and_on_no_command_line(make_fleet: MakeFleet) -> None:
    async with make_fleet("a") as fleet, make_fleet("a") as other:
        assert len(fleet.token) >= 32
        assert fleet.token != other.token
        assert fleet.token_file.read_text() == fleet.token + "\n"
        assert stat.S_IMODE(fleet.token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(fleet.token_file.parent.stat().st_mode) == 0o700
        pid = fleet.stations[0].pid
        assert fleet.token not in proc_text(pid, "cmdline")
        assert fleet.token not in proc_text(pid, "environ")


async def test_the_temporary_folder_of_a_nameless_fleet_is_removed(make_fleet: MakeFleet) -> None:
    async with make_fleet("a") as fleet:
        folder = fleet.token_file.parent
    assert not folder.exists()


async def test_a_given_folder_keeps_logs_but_not_the_secret(make_fleet: MakeFleet, tmp_path: Path) -> None:
    async with make_fleet("a", directory=tmp_path / "f"):
        pass
    assert (tmp_path / "f" / "a.log").read_text().startswith("a begins\n")
    assert not (tmp_path / "f" / "token").exists()


async def test_threads_are_pinned_and_the_fleet_is_named_in_the_environment(make_fleet: MakeFleet) -> None:
    environ = {**os.environ, "AEONFLOW_TOKEN": "not-for-children"}
    async with make_fleet("a", name="nightly", environ=environ) as fleet:
        found = proc_text(fleet.stations[0].pid, "environ").split("\0")
    assert {"AEONFLOW_FLEET=nightly", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1"} <= set(found)
    assert not any(line.startswith("AEONFLOW_TOKEN") for line in found)


def test_numba_gets_the_threads_asked_for_and_blas_one() -> None:
    env = station_environment({"PATH": "/bin"}, fleet="f", threads=3)
    assert env["NUMBA_NUM_THREADS"] == "3"
    assert env["OPENBLAS_NUM_THREADS"] == "1"
    assert env["PATH"] == "/bin"


def test_the_command_line_spells_out_every_option_but_the_secret() -> None:
    spec = StationSpec("s", parse_roles("attn:0-3,head:1/2"), host="::1")
    options = StationOptions(
        model="m", kernels="reference", threads=2, transport="picows", coalesce=False, link_delay_ms=2.5
    )
    command = station_command(spec, options, token_file=Path("/t"), port=7, python="py")
    assert command == [
        *(
            "py",
            "-P",
            "-m",
            "stations",
            "station",
            "--name",
            "s",
            "--roles",
            "attn:0-3,head:1/2",
            "--listen",
            "[::1]:7",
        ),
        *("--model", "m", "--token-file", "/t", "--kernels", "reference", "--threads", "2", "--transport", "picows"),
        *("--coalesce", "off", "--link-delay-ms", "2.5", "--exit-with-parent"),
    ]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (None, ("127.0.0.1", 0)),
        ("10.0.0.1", ("10.0.0.1", 0)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("::1", ("::1", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_where_a_station_listens_is_read_from_the_plan(host: str | None, expected: tuple[str, int]) -> None:
    assert listen_address(StationSpec("s", (), host=host)) == expected


def test_a_port_that_is_no_port_is_refused_with_the_range() -> None:
    with pytest.raises(FleetError, match=r"port '70000'.* 0 to 65535"):
        listen_address(StationSpec("s", (), host="h:70000"))


async def test_an_error_line_becomes_the_message(make_fleet: MakeFleet) -> None:
    with pytest.raises(StationStartError) as caught:
        await make_fleet("a", "refuses").start()
    assert str(caught.value) == "station refuses did not start: port 9 is in use (exit status 3)"
    assert children_of(os.getpid()) == []


async def test_a_station_that_exits_is_named_with_status_and_last_lines(make_fleet: MakeFleet) -> None:
    with pytest.raises(StationStartError) as caught:
        await make_fleet("a", "crashes", "b").start()
    assert caught.value.station == "crashes"
    assert caught.value.exit_status == 7
    assert caught.value.log_tail == ("crashes begins", "out of memory: 12 of 8 GB")
    assert str(caught.value) == (
        "station crashes exited before it was ready (exit status 7); last log lines: crashes begins | "
        "out of memory: 12 of 8 GB"
    )


async def test_a_station_killed_by_a_signal_is_described_by_its_name(make_fleet: MakeFleet) -> None:
    with pytest.raises(StationStartError, match=r"segfaults exited before it was ready \(killed by SIGSEGV\)"):
        await make_fleet("segfaults").start()


async def test_a_station_that_never_comes_up_is_named_with_the_deadline(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a", "silent", station_timeout_s=0.5)
    with pytest.raises(StationStartError, match=r"station silent did not become ready within 0\.5 s.*silent begins"):
        await fleet.start()
    assert all(s.state is StationState.STOPPED for s in fleet.stations)
    assert children_of(os.getpid()) == []


async def test_the_global_deadline_counts_and_names_the_late(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a", "silent", fleet_timeout_s=0.8, name="f")
    with pytest.raises(StationStartError, match=r"fleet f: 1 of 2 stations not ready within 0\.8 s: silent"):
        await fleet.start()
    assert children_of(os.getpid()) == []


async def test_an_interpreter_that_is_not_there_is_an_error_not_a_crash(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a")
    fleet._python = "/nowhere/python"
    with pytest.raises(StationStartError, match=r"station a cannot be started: .*No such file"):
        await fleet.start()


async def test_no_more_stations_start_at_once_than_allowed(make_fleet: MakeFleet) -> None:
    starting: set[str] = set()
    most = 0

    def changed(station: FleetStation) -> None:
        nonlocal most
        if station.state is StationState.STARTING:
            starting.add(station.name)
        else:
            starting.discard(station.name)
        most = max(most, len(starting))

    async with make_fleet(*(f"s{i}" for i in range(9)), concurrency=3, on_change=changed):
        assert most == 3


async def test_what_a_station_prints_is_kept_within_bounds(make_fleet: MakeFleet, tmp_path: Path) -> None:
    async with make_fleet("chatty", directory=tmp_path) as fleet:
        station = fleet.stations[0]
        assert station.state is StationState.READY
        await fleet.stop()  # until its last word is read
        assert "line 499" in station.log_tail(3)  # stdout and stderr are two pipes: their order is not kept
        assert len(station.log_tail(10_000)) == 200
    assert "a library prints to stdout\n" in (tmp_path / "chatty.log").read_text()


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(FleetError, match="at least 1 station, the plan has 0"):
        Fleet((), StationOptions(model="m"))


def test_thread_counts_and_delays_are_checked() -> None:
    with pytest.raises(FleetError, match="threads is 0, at least 1"):
        StationOptions(model="m", threads=0)
    with pytest.raises(FleetError, match="link delay is -1"):
        StationOptions(model="m", link_delay_ms=-1)


async def test_stations_elsewhere_are_listed_and_not_started(make_fleet: MakeFleet) -> None:
    fleet = Fleet((StationSpec("far", parse_roles("head"), url="ws://192.0.2.1:9"),), StationOptions(model="m"))
    async with fleet:
        assert [(s.name, s.url, s.pid) for s in fleet.stations] == [("far", "ws://192.0.2.1:9", 0)]
        with pytest.raises(FleetError, match="did not start a station 'far'; it started none"):
            fleet.station("far")
