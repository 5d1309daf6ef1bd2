"""What `aeonflow bench decode` shows to people: rates, and a table of where a token's time goes."""

from __future__ import annotations

from typing import Any


def show_decode(found: dict[str, Any]) -> None:
    """Print the object of `bench decode` on stdout as tables."""
    from rich.console import Console

    console = Console()
    for row in found.get("ways", [found]):
        console.print(_rates(row, found), highlight=False, soft_wrap=True)
        console.print(_breakdown(row))
        console.print(f"bottleneck: {row['bottleneck_text']}\n", highlight=False)
    if "exact_hashes_agree" in found and not found["exact_hashes_agree"]:
        console.print("[bold red]the logits hashes of exact ways differ[/]")


def _rates(row: dict[str, Any], found: dict[str, Any]) -> str:
    text = (
        f"{row['way']} of {found['model']}: decode {row['decode_tok_s']:.1f} tok/s · "
        f"prefill {row['prefill_tok_s']:.0f} tok/s · first token {row['ttft_s']:.2f} s"
    )
    if "total_tok_s" in row:
        text += (
            f"\n{found['sessions']} sessions at once: {row['total_tok_s']:.1f} tok/s together, "
            f"{row['sessions_gain']:.2f} times one"
        )
    return text


def _breakdown(row: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None)
    table.add_column("of a decoded token")
    for column in ("calls", "rows a call", "compute ms", "waits ms", "share"):
        table.add_column(column, justify="right")
    profile = row["profile"]
    passes = max(1, profile["passes"])
    for role, one in row["per_role"].items():
        table.add_row(
            role,
            f"{one['calls'] / passes:.1f}",
            f"{one['rows'] / max(1, one['calls']):.1f}",
            f"{1e3 * one['pass_compute_s'] / passes:.3f}",
            f"{1e3 * one['queue_s'] / passes:.3f}",
            _share(profile, role),
        )
    wire, host = 1e3 * profile["wire_s"] / passes, 1e3 * profile["host_s"] / passes
    table.add_row(
        "messages", f"{profile['messages'] / passes:.1f}", "", "", f"{wire:.3f}", _share(profile, "wire"),
    )  # fmt: skip
    table.add_row("host", "", "", f"{host:.3f}", "", _share(profile, "host"))
    return table


def _share(profile: dict[str, Any], name: str) -> str:
    return f"{100 * profile['shares'][name]:.0f} %"
