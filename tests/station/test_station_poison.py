"""A row that is not finite is never forwarded; a kernel that fails answers; neither touches other sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aeonflow import Flags, bands
from aeonflow.errors import CallError, OverloadedError, PoisonedError
from aeonflow.messages import InstallRoute, Open, Route, StationAddress, Vent, encode
from aeonflow.tensors import Port, pack_tensors
from stations.core.batch import is_finite
from stations.core.outgoing import ToLink, ToStation
from stations.core.station import Station
from stations.kernels.base import Span
from stations.kernels.reference import ReferenceBackend
from stations.models.folder import ModelFolder
from stations.models.roles import parse_roles

from .cores import HOST, ROUTE, Answer, ask, carriers_of, make_core, receive, run_queue, tensor

H = 64
STATIONS = ["attn:0-2", "gate_up:0-2", "down:0-2", "embed,head"]


class Breaking(ReferenceBackend):
    """The reference kernels, until `error` is set: then attn fails after it has written rows."""

    error: Exception | None = None

    def attn(self, layer: int, x: Any, spans: Sequence[Span]) -> Any:
        result = super().attn(layer, x, spans)
        if self.error is not None:
            raise self.error
        return result


def attn_core(model: ModelFolder) -> tuple[Station, Breaking]:
    backend = Breaking(model, parse_roles(STATIONS[0], 3), row_by_row=True)
    station = make_core(model, STATIONS[0], backend=backend)
    station.link_opened(50, False)
    addresses = tuple(StationAddress(f"s{i}", f"ws://s{i}") for i in range(4))
    ask(station, InstallRoute(Route(ROUTE, 3, addresses, carriers_of(STATIONS, 3)), 0))
    for session in (9, 10):
        ask(station, Open(session, ROUTE, 64))
    return station, backend


def x(value: float = 0.5, rows: int = 1, **fields: int):
    array = np.random.default_rng(0).standard_normal((rows, H)).astype(np.float32)
    array[-1, 3] = value
    return tensor(Port.X, array, **fields)


def length(station: Station, session: int = 9) -> int:
    found = station.sessions.get(session)
    assert found is not None
    return found.length(0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_goes_to_the_host_as_poison_and_nowhere_else(model: ModelFolder, value: float) -> None:
    station, _ = attn_core(model)
    receive(station, bands.ATTN, [x(rows=3)], link=50)
    (message,) = receive(station, bands.ATTN, [x(value, first=3)], link=50)
    assert isinstance(message, ToLink)
    assert message.link == HOST
    assert message.flags == Flags.VENT | Flags.POISON | Flags.FIN
    answer = Answer("s", message)
    assert isinstance(answer.error, PoisonedError)
    assert "attn of layer 0 gave NaN or infinity in rows 3 to 3" in str(answer.error)
    assert length(station) == 3, "what was derived from it is dropped"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_poisoned_session_is_silent_until_a_new_epoch_and_well_after_it(model: ModelFolder) -> None:
    station, _ = attn_core(model)
    receive(station, bands.ATTN, [x(np.nan)], link=50)
    assert receive(station, bands.ATTN, [x()], link=50) == []
    assert station.counters.events["poisoned_frames"] == 1
    sent = receive(station, bands.ATTN, [x(epoch=2)], link=50)
    assert [type(message) for message in sent] == [ToStation, ToStation]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_only_the_poisoned_session_of_a_batch_suffers(model: ModelFolder) -> None:
    station, _ = attn_core(model)
    for one in (x(np.nan), x(session=10)):
        station.receive(50, bands.ATTN, 1, Flags.FIN, b"".join(pack_tensors([one])), 0.0)
    run_queue(station)
    sent = station.take_outgoing()
    assert station.counters.max_batch_jobs == 2
    assert [message.session for message in sent if isinstance(message, ToStation)] == [10, 10]
    assert [Answer("s", message).vent.session for message in sent if isinstance(message, ToLink)] == [9]
    assert (length(station, 9), length(station, 10)) == (0, 1)


def test_poison_that_arrives_stops_the_epoch_it_names(model: ModelFolder) -> None:
    station, _ = attn_core(model)
    receive(station, bands.ATTN, [x()], link=50)
    poison = encode(Vent("poisoned", "lost cache", "s7", 9, 1))
    assert receive(station, bands.ATTN, poison, flags=Flags.VENT | Flags.POISON | Flags.FIN, link=50) == []
    assert receive(station, bands.ATTN, [x(first=1)], link=50) == []
    assert len(receive(station, bands.ATTN, [x(first=0, epoch=2)], link=50)) == 2
    assert receive(station, bands.ATTN, poison, flags=Flags.VENT | Flags.POISON | Flags.FIN, link=50) == []
    assert len(receive(station, bands.ATTN, [x(first=1, epoch=2)], link=50)) == 2, "poison of an old epoch is stale"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RuntimeError("boom"), CallError, "the kernels failed: RuntimeError: boom"),
        (MemoryError(), OverloadedError, "no memory"),
    ],
)
def test_kernels_that_fail_are_reported_and_leave_no_rows_behind(
    model: ModelFolder, error: Exception, kind: type[Exception], text: str
) -> None:
    station, backend = attn_core(model)
    receive(station, bands.ATTN, [x(rows=3)], link=50)
    backend.error = error
    (message,) = receive(station, bands.ATTN, [x(first=3)], link=50)
    assert isinstance(Answer("s", message).error, kind)
    assert text in str(Answer("s", message).error)
    assert length(station) == 3
    backend.error = None
    assert len(receive(station, bands.ATTN, [x(first=3)], link=50)) == 2


def test_large_but_finite_rows_are_no_poison() -> None:
    assert is_finite(np.full((2, 3), 3e38, np.float32))
    assert is_finite(np.array([[1e-45, -0.0]], np.float32))
    assert not is_finite(np.array([[3e38, np.inf]], np.float32))
    assert not is_finite(np.array([[3e38, np.nan]], np.float32))
