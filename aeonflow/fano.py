"""The Fano plane as tables: seven points, seven lines, and the signs of the octonions' products on them.

Points are the kinds of workers, a line names the traffic between three of them; residual seeds carry line and
orientation in their stream id (`bands.seed_stream`). Pure: nothing here knows a session or a socket. Table of what each
line carries: `docs/protocol.md`, *Fano lines*.
"""

from __future__ import annotations

import msgspec

PLUS, MINUS = 0, 1  # orientations; they compose by XOR
UNIT = 0  # index of the real unit e0 in products


class Point(msgspec.Struct, frozen=True):
    """e1 to e7."""

    index: int
    role: str


class Line(msgspec.Struct, frozen=True):
    """A cyclic triple (a, b, c): ab = +c, bc = +a, ca = +b; reversed, minus."""

    index: int  # 0 to 6, as in a seed's stream id
    points: tuple[int, int, int]
    meaning: str
    is_seed: bool  # carried on the seed band; the others are names for traffic of other streams


POINTS: tuple[Point, ...] = (
    Point(1, "embed shards"),
    Point(2, "attn"),
    Point(3, "gate_up"),
    Point(4, "down"),
    Point(5, "lm_head shards"),
    Point(6, "layer-warden"),
    Point(7, "cobordism-warden"),
)

LINES: tuple[Line, ...] = (
    Line(0, (1, 2, 3), "initial residual", True),
    Line(1, (1, 4, 5), "residual past attention (Pair X)", True),
    Line(2, (1, 7, 6), "vocabulary check and KV write-back", False),
    Line(3, (2, 4, 6), "attention contribution to down, KV to the warden (Pair Y)", True),
    Line(4, (2, 5, 7), "early logits tap (Pair Z)", True),
    Line(5, (3, 4, 7), "ffn contribution", True),
    Line(6, (3, 6, 5), "volume capture", False),
)


class Product(msgspec.Struct, frozen=True):
    """± e_index: `orientation` PLUS or MINUS; index 0 is the unit."""

    orientation: int
    index: int


def _table() -> tuple[tuple[Product, ...], ...]:
    rows = [[Product(PLUS, UNIT)] * 8 for _ in range(8)]
    for i in range(8):
        rows[UNIT][i] = rows[i][UNIT] = Product(PLUS, i)
    for i in range(1, 8):
        rows[i][i] = Product(MINUS, UNIT)
    for line in LINES:
        a, b, c = line.points
        for x, y, z in ((a, b, c), (b, c, a), (c, a, b)):
            rows[x][y] = Product(PLUS, z)
            rows[y][x] = Product(MINUS, z)
    return tuple(tuple(row) for row in rows)


PRODUCTS: tuple[tuple[Product, ...], ...] = _table()  # PRODUCTS[i][j] = e_i e_j, 8 × 8


def product(left: Product, right: Product) -> Product:
    """The product of two signed units; the grouping is the caller's, it is not associative."""
    unsigned = PRODUCTS[left.index][right.index]
    return Product(left.orientation ^ right.orientation ^ unsigned.orientation, unsigned.index)


def unit(index: int) -> Product:
    """+ e_index, index 0 to 7."""
    if not 0 <= index <= 7:
        raise ValueError(f"e{index}: units are e0 to e7")
    return Product(PLUS, index)


def line_through(a: int, b: int) -> Line:
    """The one line through two different points 1 to 7."""
    if a == b or not (1 <= a <= 7 and 1 <= b <= 7):
        raise ValueError(f"points {a} and {b}: two different ones of 1 to 7 are needed")
    return next(line for line in LINES if a in line.points and b in line.points)


def orientation(a: int, b: int) -> int:
    """PLUS when going from point a to b follows their line's cycle, MINUS against it."""
    line_through(a, b)
    return PRODUCTS[a][b].orientation
