"""Programs of level 5 about grids of integers."""

from __future__ import annotations

import functools
import random

from practicum.environments.affine.programs.base import Draft, grid


def row_sums(rng: random.Random) -> Draft:
    shape, a, b = grid(rng), rng.randint(1, 5), rng.randint(0, 60)
    (g,) = shape.names
    return Draft(
        shape, f"the sum of each row of {g}, times {a}, plus {b}, one a line",
        (f"for row in {g}:", f"    print(sum(row) * {a} + {b})"),
        lambda v: [functools.reduce(lambda p, q: p + q * a, row, b) for row in v],
    )  # fmt: skip


def column_tops(rng: random.Random) -> Draft:
    shape, a = grid(rng), rng.randint(-20, 60)
    (g,) = shape.names
    return Draft(
        shape, f"the largest number of each column of {g}, plus {a}, with spaces between",
        (f"print(*[max(column) + {a} for column in zip(*{g})])",),
        lambda v: " ".join(str(max(row[i] for row in v) + a) for i in range(len(v[0]))),
    )  # fmt: skip


def transposed(rng: random.Random) -> Draft:
    shape, a = grid(rng), rng.randint(1, 20)
    (g,) = shape.names
    return Draft(
        shape, f"the columns of {g} as rows, each number times {a}, one row a line",
        (f"for column in zip(*{g}):", f"    print(*[i * {a} for i in column])"),
        lambda v: [" ".join(str(row[i] * a) for row in v) for i in range(len(v[0]))],
    )  # fmt: skip


def quarter_turn(rng: random.Random) -> Draft:
    shape, a = grid(rng), rng.randint(0, 60)
    (g,) = shape.names
    return Draft(
        shape, f"{g} turned a quarter to the right, each number plus {a}, one row a line",
        (f"for column in zip(*{g}[::-1]):", f"    print(*[i + {a} for i in column])"),
        lambda v: [" ".join(str(v[r][c] + a) for r in reversed(range(len(v)))) for c in range(len(v[0]))],
    )  # fmt: skip


def diagonals(rng: random.Random) -> Draft:
    shape, a, b = grid(rng, square=True), rng.randint(2, 9), rng.randint(2, 9)
    (g,) = shape.names
    return Draft(
        shape, f"{a} times the sum of the diagonal of {g} that begins at the top left, minus {b} times that of the "
        "other diagonal",
        (f"size = len({g})", f"down = sum({g}[i][i] for i in range(size))",
         f"up = sum({g}[i][size - 1 - i] for i in range(size))", f"print({a} * down - {b} * up)"),
        lambda v: sum(n * ((r == c) * a - (r + c == len(v) - 1) * b) for r, row in enumerate(v) for c, n in
                      enumerate(row)),
    )  # fmt: skip


def cheapest_path(rng: random.Random) -> Draft:
    shape, a = grid(rng, 1, 9), rng.randint(1, 99)
    (g,) = shape.names

    def best(v: list[list[int]], r: int, c: int) -> int:
        before = [best(v, p, q) for p, q in ((r - 1, c), (r, c - 1)) if p >= 0 and q >= 0]
        return v[r][c] + min(before, default=0)

    return Draft(
        shape, f"the smallest sum of the numbers on a way through {g} from the top left to the bottom right that goes "
        f"only right and down, plus {a}",
        ("best = []", f"for row in {g}:", "    new = []", "    for i, cost in enumerate(row):",
         "        ways = ([best[i]] if best else []) + ([new[-1]] if new else [])",
         "        new.append(cost + min(ways, default=0))", "    best = new", f"print(best[-1] + {a})"),
        lambda v: best(v, len(v) - 1, len(v[0]) - 1) + a,
    )  # fmt: skip


LEVEL_5 = (row_sums, column_tops, transposed, quarter_turn, diagonals, cheapest_path)
