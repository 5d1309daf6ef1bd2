"""Who may connect: tokens, station keys, origins."""

from __future__ import annotations

import pytest

from aeonflow import station_key
from aeonflow.auth import Gatekeeper, Refusal, check_token
from aeonflow.errors import LocalProtocolError

from .peers import TOKEN, vectors


def bearer(token: str) -> list[str]:
    return [f"Bearer {token}"]


def test_the_station_key_vector() -> None:
    case = vectors("messages")["station_key"]
    assert station_key(case["secret"]) == case["key"]


def test_the_secret_grants_everything_and_the_station_key_forwarding() -> None:
    gatekeeper = Gatekeeper(TOKEN)
    assert gatekeeper.admit(bearer(TOKEN), []) == "full"
    assert gatekeeper.admit([f"bearer  {TOKEN} "], []) == "full"
    assert gatekeeper.admit(bearer(station_key(TOKEN)), []) == "forward"


@pytest.mark.parametrize(
    "authorization",
    [
        [],
        bearer(""),
        bearer("wrong"),
        bearer(TOKEN[:-1]),
        bearer(TOKEN + "x"),
        bearer(TOKEN.upper()),
        bearer("\udcff"),
        bearer(station_key("another")),
        [f"Basic {TOKEN}"],
        [TOKEN],
        bearer(TOKEN) * 2,
    ],
)
def test_anything_else_is_401(authorization: list[str]) -> None:
    refusal = Gatekeeper(TOKEN).admit(authorization, [])
    assert isinstance(refusal, Refusal)
    assert refusal.status == 401
    assert TOKEN not in refusal.reason


def test_an_origin_is_403_unless_it_is_listed_even_with_the_token() -> None:
    gatekeeper = Gatekeeper(TOKEN, ["https://ours.example"])
    assert gatekeeper.admit(bearer(TOKEN), ["https://ours.example"]) == "full"
    for origins in (["https://evil.example"], ["null"], ["https://ours.example", "https://evil.example"]):
        refusal = gatekeeper.admit(bearer(TOKEN), origins)
        assert isinstance(refusal, Refusal)
        assert refusal.status == 403


@pytest.mark.parametrize("token", ["", "with space", "line\r\nbreak", "smörgås"])
def test_tokens_that_no_header_can_carry_are_refused_at_once(token: str) -> None:
    with pytest.raises(LocalProtocolError, match="token"):
        check_token(token)
