"""What `bench decode` shows to people."""

from __future__ import annotations

from typing import Any

import pytest

from host.cli.bench_table import show_decode

ROLE = {"calls": 60, "rows": 120, "compute_s": 0.006, "pass_compute_s": 0.012, "queue_s": 0.002}
FOUND: dict[str, Any] = {
    "way": "trisplit chain fast 1 thread",
    "model": "smollm2",
    "decode_tok_s": 20.04,
    "prefill_tok_s": 161.2,
    "ttft_s": 1.5,
    "sessions": 2,
    "total_tok_s": 30.0,
    "sessions_gain": 1.5,
    "per_role": {"attn": ROLE},
    "profile": {
        "passes": 4,
        "wire_s": 0.02,
        "host_s": 0.001,
        "messages": 248,
        "shares": {"attn": 0.4, "wire": 0.57, "host": 0.03},
    },
    "bottleneck_text": "messages: 57 % of a token's time",
}


def test_a_breakdown_is_a_table_a_token_and_ends_with_the_bottleneck(capsys: pytest.CaptureFixture[str]) -> None:
    show_decode(FOUND)
    out = capsys.readouterr().out
    assert "decode 20.0 tok/s · prefill 161 tok/s · first token 1.50 s" in out
    assert "2 sessions at once: 30.0 tok/s together, 1.50 times one" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["attn"] == ["15.0", "2.0", "3.000", "0.500", "40", "%"]
    assert rows["messages"] == ["62.0", "5.000", "57", "%"]
    assert rows["host"] == ["0.250", "3", "%"]
    assert out.rstrip().splitlines()[-1] == "bottleneck: messages: 57 % of a token's time"
