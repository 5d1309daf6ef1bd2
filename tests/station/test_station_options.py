"""The command line of a station, and the small decisions of its shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from stations.server.costs import INLINE_LIMIT_S, CostModel
from stations.server.machine import pin_threads, resident_bytes
from stations.server.options import parse_address, parse_arguments
from stations.server.tls import client_tls, server_tls

ENV = {"AEONFLOW_TOKEN": " secret\n"}


def test_defaults_are_loopback_any_port_fast_kernels_and_one_thread() -> None:
    options = parse_arguments(["--model", "m"], ENV)
    assert (options.host, options.port, options.kernels, options.threads) == ("127.0.0.1", 0, "fast", 1)
    assert (options.token, options.coalesce, options.link_delay_s, options.roles) == ("secret", True, 0.0, "")
    assert not options.insecure
    assert not options.exit_with_parent


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:7", ("::1", 7)), ("localhost:65535", ("localhost", 65535))],
)
def test_addresses_are_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--model"),
        (["--model", "m", "--listen", "localhost"], "HOST:PORT is expected"),
        (["--model", "m", "--listen", ":80"], "HOST:PORT is expected"),
        (["--model", "m", "--listen", "::1:80"], "HOST:PORT is expected"),
        (["--model", "m", "--listen", "localhost:70000"], "0 to 65535"),
        (["--model", "m", "--listen", "localhost:²"], "0 to 65535"),
        (["--model", "m", "--threads", "0"], "--threads 0: 1 to 256"),
        (["--model", "m", "--threads", "many"], "many"),
        (["--model", "m", "--link-delay-ms", "-1"], "--link-delay-ms -1: 0 or more"),
        (["--model", "m", "--link-delay-ms", "nan"], "--link-delay-ms nan"),
        (["--model", "m", "--drain-s", "-1"], "--drain-s -1"),
        (["--model", "m", "--kv-memory-mib", "-5"], "--kv-memory-mib -5"),
        (["--model", "m", "--kernels", "magic"], "magic"),
        (["--model", "m", "--tls-cert", "c.pem"], "go together"),
        (["--model", "m", "--warp", "9"], "--warp"),
        (["--model", "m", "--token", "s"], "--token"),
        (["--model", "m", "--token-file", "/no/such/file"], "/no/such/file"),
    ],
)
def test_a_bad_command_line_is_refused_naming_the_option(arguments: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_arguments(arguments, ENV)


def test_the_token_file_goes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert parse_arguments(["--model", "m", "--token-file", str(file)], ENV).token == "from-file"
    file.write_text("x" * 5000)
    with pytest.raises(ValueError, match="at most 4096 bytes"):
        parse_arguments(["--model", "m", "--token-file", str(file)], ENV)
    file.write_text("\n")
    with pytest.raises(ValueError, match="one token"):
        parse_arguments(["--model", "m", "--token-file", str(file)], ENV)


def test_no_token_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="--token-file or set AEONFLOW_TOKEN"):
        parse_arguments(["--model", "m"], {})


def test_libraries_get_one_thread_and_kernels_as_many_as_asked() -> None:
    environment = {"OMP_NUM_THREADS": "64"}
    pin_threads(environment, 2)
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["NUMBA_NUM_THREADS"] == "2"
    assert resident_bytes() > 1 << 20


def test_tls_is_for_those_who_ask() -> None:
    options = parse_arguments(["--model", "m"], ENV)
    assert server_tls(options) is None
    assert client_tls(options, "ws://a:1") is None
    assert client_tls(options, "wss://a:1") is client_tls(options, "wss://b:1")


def test_costs_are_unknown_at_first_then_those_of_the_nearest_smaller_batch() -> None:
    costs = CostModel()
    assert costs.estimate("attn", 40).seconds == costs.estimate("attn", 1).seconds == float("inf")
    costs.estimate("attn", 1).learn(1e-4)
    assert costs.estimate("attn", 1).seconds == 1e-4
    assert costs.estimate("attn", 2).seconds == 2e-4
    assert costs.estimate("attn", 40).seconds == pytest.approx(32e-4)
    assert costs.estimate("down", 1).seconds == float("inf")


def test_one_preempted_batch_does_not_banish_a_role_from_the_loop() -> None:
    estimate = CostModel().estimate("attn", 1)
    for _ in range(20):
        estimate.learn(1e-4)
    estimate.learn(30e-3)
    assert estimate.seconds < INLINE_LIMIT_S
    for _ in range(40):
        estimate.learn(30e-3)
    assert estimate.seconds > INLINE_LIMIT_S
