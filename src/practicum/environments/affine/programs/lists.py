"""Programs about lists of integers: level 3 is one pass, level 4 takes two lists, a count or an order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from practicum.environments.affine.programs.base import Draft, counted, list_and_number, numbers, two_lists


def _row(values: Sequence[object]) -> str:
    return " ".join(map(str, values))


# Level 3: one pass.


def sum_plus(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng), rng.randint(1, 5), rng.randint(1, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"the sum of {xs}, times {a}, plus {b}", (f"print(sum({xs}) * {a} + {b})",),
        lambda v: b - sum(-n * a for n in v),
    )  # fmt: skip


def each_changed(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng), rng.randint(2, 9), rng.randint(1, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"every number of {xs} times {a} plus {b}, with spaces between",
        (f"print(*[i * {a} + {b} for i in {xs}])",), lambda v: _row([sum([n] * a, b) for n in v]),
    )  # fmt: skip


def above(rng: random.Random) -> Draft:
    shape, a = numbers(rng, least=3), rng.randint(-3, 20)
    (xs,) = shape.names
    return Draft(
        shape, f"the numbers of {xs} above {a}, with spaces between", (f"print(*[i for i in {xs} if i > {a}])",),
        lambda v: _row([n for n in v if not n <= a]), [([a, a + 1, a - 1],), ([a + 2, 0, a + 5],)],
    )  # fmt: skip


def count_above(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng, least=3), rng.randint(-3, 20), rng.randint(1, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"how many numbers of {xs} are above {a}, plus {b}",
        (f"count = {b}", f"for i in {xs}:", f"    if i > {a}:", "        count += 1", "print(count)"),
        lambda v: b + len(v) - sum(n <= a for n in v), [([a, a + 1, a - 1],), ([a + 2, a + 3, a + 5],)],
    )  # fmt: skip


def reach(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng), rng.randint(1, 9), rng.randint(1, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"the largest of {xs} minus the smallest, times {a}, plus {b}",
        (f"print((max({xs}) - min({xs})) * {a} + {b})",), lambda v: max(p - q for p in v for q in v) * a + b,
    )  # fmt: skip


def squares_sum(rng: random.Random) -> Draft:
    shape, a = numbers(rng, -9, 15), rng.randint(1, 99)
    (xs,) = shape.names
    return Draft(
        shape, f"the sum of the squares of {xs}, minus {a}", (f"print(sum(i * i for i in {xs}) - {a})",),
        lambda v: sum(abs(n) ** 2 for n in v) - a,
    )  # fmt: skip


def running_totals(rng: random.Random) -> Draft:
    shape, a = numbers(rng), rng.randint(-20, 40)
    (xs,) = shape.names
    return Draft(
        shape, f"{a} plus the first number of {xs}, plus the first two, and so on up to all of them, one a line",
        (f"total = {a}", f"for i in {xs}:", "    total += i", "    print(total)"),
        lambda v: list(itertools.accumulate(v, initial=a))[1:],
    )  # fmt: skip


def alternating(rng: random.Random) -> Draft:
    shape, a = numbers(rng), rng.randint(-30, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"{a} plus the first number of {xs}, minus the second, plus the third and so on",
        (f"total, sign = {a}, 1", f"for i in {xs}:", "    total += sign * i", "    sign = -sign", "print(total)"),
        lambda v: a + sum(v[::2]) - sum(v[1::2]),
    )  # fmt: skip


def product_rest(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng, 1, 12, most=5), rng.randint(5, 97), rng.randint(0, 60)
    (xs,) = shape.names

    def product(v: list[int]) -> int:
        return v[0] * product(v[1:]) if v else 1

    return Draft(
        shape, f"the remainder of the product of {xs} divided by {a}, plus {b}",
        ("out = 1", f"for i in {xs}:", f"    out = out * i % {a}", f"print(out + {b})"),
        lambda v: product(v) % a + b,
    )  # fmt: skip


def turned(rng: random.Random) -> Draft:
    shape, a = numbers(rng), rng.randint(1, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"the numbers of {xs} in the opposite order, each minus {a}, with spaces between",
        (f"print(*[i - {a} for i in {xs}[::-1]])",), lambda v: _row([n - a for n in reversed(v)]),
    )  # fmt: skip


def steps_between(rng: random.Random) -> Draft:
    shape, a = numbers(rng, least=3), rng.randint(1, 20)
    (xs,) = shape.names
    return Draft(
        shape, f"each number of {xs} from the second on minus the one before it, times {a}, with spaces between",
        (f"print(*[({xs}[i] - {xs}[i - 1]) * {a} for i in range(1, len({xs}))])",),
        lambda v: _row([(q - p) * a for p, q in itertools.pairwise(v)]),
    )  # fmt: skip


# Level 4: two lists, a count, an order.


def second_largest(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng, least=3), rng.randint(1, 9), rng.randint(1, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"the second number of {xs} when the largest comes first, times {a}, plus {b}",
        (f"{xs}.sort(reverse=True)", f"print({xs}[1] * {a} + {b})"),
        lambda v: min(max(v[:i] + v[i + 1 :]) for i in range(len(v))) * a + b,
    )  # fmt: skip


def without_repeats(rng: random.Random) -> Draft:
    shape, a = numbers(rng, 0, 6, 4, 8), rng.randint(0, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"the numbers of {xs}, each only where it stands first, plus {a}, with spaces between",
        ("seen = []", f"for i in {xs}:", "    if i not in seen:", "        seen.append(i)",
         f"print(*[i + {a} for i in seen])"),
        lambda v: _row([n + a for n in dict.fromkeys(v)]),
    )  # fmt: skip


def by_remainder(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng, 0, 40, 3), rng.randint(3, 9), rng.randint(0, 20)
    (xs,) = shape.names
    return Draft(
        shape, f"the numbers of {xs} sorted by their remainder when divided by {a} and then by size, each plus {b}, "
        "with spaces between",
        (f"print(*[i + {b} for i in sorted({xs}, key=lambda i: (i % {a}, i))])",),
        lambda v: _row([n + b for rest in range(a) for n in sorted(v) if (n - rest) % a == 0]),
    )  # fmt: skip


def dot_product(rng: random.Random) -> Draft:
    shape, a = two_lists(rng), rng.randint(-60, 60)
    xs, ys = shape.names
    return Draft(
        shape, f"the sum of the products of the numbers of {xs} and {ys} in the same places, plus {a}",
        (f"total = {a}", f"for i in range(len({xs})):", f"    total += {xs}[i] * {ys}[i]", "print(total)"),
        lambda v, w: sum(p * q for p, q in zip(v, w, strict=True)) + a,
    )  # fmt: skip


def interleaved(rng: random.Random) -> Draft:
    shape, a = two_lists(rng), rng.randint(1, 60)
    xs, ys = shape.names
    return Draft(
        shape, f"the first of {xs}, the first of {ys} plus {a}, the second of {xs}, the second of {ys} plus {a} and so "
        "on, with spaces between",
        ("out = []", f"for p, q in zip({xs}, {ys}):", f"    out += [p, q + {a}]", "print(*out)"),
        lambda v, w: _row([[v, [n + a for n in w]][i % 2][i // 2] for i in range(2 * len(v))]),
    )  # fmt: skip


def larger_places(rng: random.Random) -> Draft:
    shape, a, b = two_lists(rng), rng.randint(0, 8), rng.randint(1, 60)
    xs, ys = shape.names
    return Draft(
        shape, f"in how many places the number of {xs} is above that of {ys} plus {a}, plus {b}",
        (f"print(sum(p > q + {a} for p, q in zip({xs}, {ys})) + {b})",),
        lambda v, w: b + len([i for i in range(len(v)) if v[i] - w[i] - a > 0]),
        [([a + 9, a + 8, a + 7], [0, 1, 2]), ([a + 9, a + 8, 0, 1], [0, 0, 5, 9]), ([0, 9 + a], [5, 1])],
    )  # fmt: skip


def nth_smallest(rng: random.Random) -> Draft:
    shape, a, b = list_and_number(rng, 1, 3), rng.randint(1, 9), rng.randint(0, 60)
    xs, k = shape.names
    return Draft(
        shape, f"number {k} of {xs} when the smallest comes first and counts as number 1, times {a}, plus {b}",
        (f"print(sorted({xs})[{k} - 1] * {a} + {b})",),
        lambda v, w: next(n for n in sorted(v) if sum(m <= n for m in v) >= w) * a + b,
    )  # fmt: skip


def rotated(rng: random.Random) -> Draft:
    shape, a = list_and_number(rng, 1, 9), rng.randint(0, 60)
    xs, k = shape.names

    def turn(v: list[int], w: int) -> str:
        row = list(v)
        for _ in range(w):
            row.append(row.pop(0))
        return _row([n + a for n in row])

    return Draft(
        shape, f"{xs} after its first number has been moved to the end {k} times, each number plus {a}, with spaces "
        "between",
        (f"{k} %= len({xs})", f"print(*[i + {a} for i in {xs}[{k}:] + {xs}[:{k}]])"), turn,
    )  # fmt: skip


def first_reaching(rng: random.Random) -> Draft:
    shape, a, b = list_and_number(rng, 5, 60), rng.randint(1, 9), rng.randint(50, 99)
    xs, k = shape.names
    return Draft(
        shape, f"how many numbers of {xs} from the left it takes to a sum of at least {k}, times {a} ({b} if all do "
        "not reach it)",
        (f"total, out = 0, {b}", f"for i in range(len({xs})):", f"    total += {xs}[i]", f"    if total >= {k}:",
         f"        out = (i + 1) * {a}", "        break", "print(out)"),
        lambda v, w: next((i * a for i in range(1, len(v) + 1) if sum(v[:i]) >= w), b),
    )  # fmt: skip


def counted_even(rng: random.Random) -> Draft:
    shape, a, b = counted(rng), rng.randint(2, 7), rng.randint(0, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"the sum of those of {xs} that can be divided by {a}, plus {b}",
        (f"print(sum(i for i in {xs} if i % {a} == 0) + {b})",),
        lambda v: sum(n * (n // a * a == n) for n in v) + b, [([a, 2 * a, 1],), ([3 * a, 1],), ([4 * a, 5 * a],)],
    )  # fmt: skip


def counted_records(rng: random.Random) -> Draft:
    shape, a, b = counted(rng), rng.randint(1, 9), rng.randint(0, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"how many of {xs} are above all before them (the first one counts), times {a}, plus {b}",
        ("best, count = None, 0", f"for i in {xs}:", "    if best is None or i > best:",
         "        best, count = i, count + 1", f"print(count * {a} + {b})"),
        lambda v: sum(all(m < n for m in v[:i]) for i, n in enumerate(v)) * a + b,
        [([1, 2, 3, 4],), ([9, 8, 7],), ([5, 6, 2, 7, 8],)],
    )  # fmt: skip


LEVEL_3 = (
    sum_plus, each_changed, above, count_above, reach, squares_sum, running_totals, alternating, product_rest, turned,
    steps_between,
)  # fmt: skip
LEVEL_4 = (
    second_largest, without_repeats, by_remainder, dot_product, interleaved, larger_places, nth_smallest, rotated,
    first_reaching, counted_even, counted_records,
)  # fmt: skip
