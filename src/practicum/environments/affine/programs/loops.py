"""Programs that loop over the digits of a number, its divisors, or a range: levels 3 and 4."""

from __future__ import annotations

import math
import random

from practicum.environments.affine.programs.base import Draft, integer, integers, letters

# Level 3: one loop.


def digit_sum(rng: random.Random) -> Draft:
    shape, b = integer(rng, 0, 9999), rng.randint(1, 99)
    (n,) = shape.names
    return Draft(
        shape, f"the sum of the digits of {n}, plus {b}", (f"print(sum(map(int, str({n}))) + {b})",),
        lambda v: sum(v // 10**power % 10 for power in range(9)) + b,
    )  # fmt: skip


def multiples_sum(rng: random.Random) -> Draft:
    shape, a, b = integer(rng, 0, 80), rng.randint(2, 9), rng.randint(0, 20)
    (n,) = shape.names
    return Draft(
        shape, f"{b} plus the sum of the multiples of {a} from 0 up to {n}",
        (f"total = {b}", f"for i in range(0, {n} + 1, {a}):", "    total += i", "print(total)"),
        lambda v: a * (v // a) * (v // a + 1) // 2 + b,
    )  # fmt: skip


def countdown(rng: random.Random) -> Draft:
    shape, a, b = integer(rng, 1, 40), rng.randint(2, 9), rng.randint(1, 9)
    (n,) = shape.names
    return Draft(
        shape, f"{n}, {n} minus {a}, and so on while above {b}, one a line (just {b} if there is none)",
        (f"if {n} <= {b}:", f"    print({b})", f"while {n} > {b}:", f"    print({n})", f"    {n} -= {a}"),
        lambda v: list(range(v, b, -a)) or [b],
    )  # fmt: skip


def multiplication_row(rng: random.Random) -> Draft:
    shape, a, b = integer(rng, -9, 40), rng.randint(3, 6), rng.randint(0, 30)
    (n,) = shape.names
    return Draft(
        shape, f"the first {a} multiples of {n}, from {n} on, each plus {b}, one a line",
        (f"for i in range(1, {a + 1}):", f"    print({n} * i + {b})"),
        lambda v: [sum([v] * i, b) for i in range(1, a + 1)],
    )  # fmt: skip


# Level 4: a loop whose end is not known before it, or two.


def digits_backwards(rng: random.Random) -> Draft:
    shape, b = integer(rng, 1, 9999), rng.randint(1, 99)
    (n,) = shape.names
    return Draft(
        shape, f"the number whose digits are those of {n} backwards, plus {b}",
        ("back = 0", f"while {n} > 0:", f"    back = back * 10 + {n} % 10", f"    {n} //= 10", f"print(back + {b})"),
        lambda v: int(str(v)[::-1]) + b,
    )  # fmt: skip


def halvings(rng: random.Random) -> Draft:
    shape, a, b = integer(rng, 1, 900), rng.randint(2, 5), rng.randint(1, 60)
    (n,) = shape.names
    return Draft(
        shape, f"how often {n} can be divided by {a}, rounding down, until it is 0, plus {b}",
        ("count = 0", f"while {n} > 0:", f"    {n} //= {a}", "    count += 1", f"print(count + {b})"),
        lambda v: next(i for i in range(64) if a**i > v) + b, [(a**3,), (a**4,), (a**5 + 1,)],
    )  # fmt: skip


def in_base(rng: random.Random) -> Draft:
    shape, a, end = integer(rng, 1, 400), rng.randint(2, 9), letters(rng)
    (n,) = shape.names
    return Draft(
        shape, f"the digits of {n} in base {a} and then '{end}'",
        ("out = ''", f"while {n} > 0:", f"    out = str({n} % {a}) + out", f"    {n} //= {a}", f"print(out + '{end}')"),
        lambda v: "".join(str(v // a**i % a) for i in reversed(range(12))).lstrip("0") + end,
    )  # fmt: skip


def collatz(rng: random.Random) -> Draft:
    shape, b = integer(rng, 1, 60), rng.randint(1, 300)
    (n,) = shape.names

    def steps(v: int) -> int:
        return 0 if v == 1 else 1 + steps(v // 2 if v % 2 == 0 else 3 * v + 1)

    return Draft(
        shape, f"{b} plus the number of steps that {n} takes to 1 when an even number is halved and an odd one is "
        "tripled and increased by 1",
        ("steps = 0", f"while {n} != 1:", f"    {n} = {n} // 2 if {n} % 2 == 0 else 3 * {n} + 1", "    steps += 1",
         f"print(steps + {b})"),
        lambda v: steps(v) + b,
    )  # fmt: skip


def divisors(rng: random.Random) -> Draft:
    shape, a = integer(rng, 2, 90), rng.randint(0, 60)
    (n,) = shape.names
    return Draft(
        shape, f"the divisors of {n} in rising order, each plus {a}, with spaces between",
        (f"print(*[i + {a} for i in range(1, {n} + 1) if {n} % i == 0])",),
        lambda v: " ".join(str(d + a) for d in sorted({d for i in range(1, v + 1) for d in (i,) if v // i * i == v})),
    )  # fmt: skip


def greatest_divisor(rng: random.Random) -> Draft:
    shape, a, b = integers(rng, 2, 1, 90), rng.randint(1, 9), rng.randint(1, 60)
    x, y = shape.names
    return Draft(
        shape, f"the greatest common divisor of {x} and {y}, times {a}, plus {b}",
        (f"while {y}:", f"    {x}, {y} = {y}, {x} % {y}", f"print({x} * {a} + {b})"),
        lambda v, w: math.gcd(v, w) * a + b, [(12, 18), (40, 60), (35, 14), (9, 27)],
    )  # fmt: skip


def recurrence(rng: random.Random) -> Draft:
    shape, first, second, a = integer(rng, 1, 20), rng.randint(0, 9), rng.randint(1, 9), rng.randint(1, 3)
    (n,) = shape.names

    def member(v: int) -> int:
        row = [first, second]
        while len(row) <= v:
            row.append(row[-1] + a * row[-2])
        return row[v]

    return Draft(
        shape, f"member {n} of the row {first}, {second}, ... (members are counted from 0) in which each is the one "
        f"before it plus {a} times the one before that",
        (f"p, q = {first}, {second}", f"for _ in range({n}):", f"    p, q = q, q + {a} * p", "print(p)"),
        member,
    )  # fmt: skip


def primes_up_to(rng: random.Random) -> Draft:
    shape, a = integer(rng, 2, 60), rng.randint(0, 60)
    (n,) = shape.names
    return Draft(
        shape, f"how many primes there are up to {n}, and the largest of them plus {a}, with a space between",
        ("found = []", f"for i in range(2, {n} + 1):", "    if all(i % p for p in found):", "        found.append(i)",
         f"print(len(found), found[-1] + {a})"),
        lambda v: (lambda row: f"{len(row)} {max(row) + a}")(
            [i for i in range(2, v + 1) if not any(i == j * k for j in range(2, i) for k in range(2, i // j + 1))]),
    )  # fmt: skip


def set_bits(rng: random.Random) -> Draft:
    shape, a, b = integer(rng, 0, 500), rng.randint(2, 20), rng.randint(1, 60)
    (n,) = shape.names
    return Draft(
        shape, f"the number of ones in {n} written in binary, times {a}, plus {b}",
        (f"print(bin({n}).count('1') * {a} + {b})",), lambda v: sum(v >> i & 1 for i in range(12)) * a + b,
        [(2**i - 1,) for i in range(9)],
    )  # fmt: skip


LEVEL_3 = (digit_sum, multiples_sum, countdown, multiplication_row)
LEVEL_4 = (
    digits_backwards, halvings, in_base, collatz, divisors, greatest_divisor, recurrence, primes_up_to, set_bits,
)  # fmt: skip
