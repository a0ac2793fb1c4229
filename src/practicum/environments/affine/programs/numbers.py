"""Programs about one, two or three integers: level 1 is one expression, level 2 decides."""

from __future__ import annotations

import math
import random

from practicum.environments.affine.programs.base import Draft, integer, integers, letters, near

# Level 1: one expression.


def times_plus(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(2, 9), rng.randint(1, 99)
    (n,) = shape.names
    return Draft(shape, f"{n} times {a} plus {b}", (f"print({n} * {a} + {b})",), lambda v: b + sum([v] * a))


def times_minus(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(2, 9), rng.randint(1, 99)
    (n,) = shape.names
    return Draft(shape, f"{n} times {a} minus {b}", (f"print({n} * {a} - {b})",), lambda v: sum([v] * a) - b)


def plus_times(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(2, 30), rng.randint(2, 9)
    (n,) = shape.names
    return Draft(
        shape, f"the sum of {n} and {a}, times {b}", (f"print(({n} + {a}) * {b})",), lambda v: v * b + a * b
    )  # fmt: skip


def taken_from(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(2, 9), rng.randint(10, 99)
    (n,) = shape.names
    return Draft(shape, f"{b} minus {a} times {n}", (f"print({b} - {a} * {n})",), lambda v: -(a * v - b))


def square_plus(rng: random.Random) -> Draft:
    shape, b = integer(rng), rng.randint(1, 99)
    (n,) = shape.names
    return Draft(shape, f"the square of {n} plus {b}", (f"print({n} ** 2 + {b})",), lambda v: v * v + b)


def square_less(rng: random.Random) -> Draft:
    shape, a = integer(rng), rng.randint(2, 60)
    (n,) = shape.names
    return Draft(
        shape, f"the square of {n} minus {a} times {n}", (f"print({n} * {n} - {a} * {n})",), lambda v: v * (v - a)
    )


def remainder_plus(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(3, 19), rng.randint(1, 30)
    (n,) = shape.names
    return Draft(
        shape, f"the remainder of {n} divided by {a}, plus {b}", (f"print({n} % {a} + {b})",),
        lambda v: v - math.floor(v / a) * a + b, near(a),
    )  # fmt: skip


def quotient_plus(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(2, 9), rng.randint(1, 60)
    (n,) = shape.names
    return Draft(
        shape, f"{n} divided by {a}, rounded down, plus {b}", (f"print({n} // {a} + {b})",),
        lambda v: math.floor(v / a) + b, near(a),
    )  # fmt: skip


def larger_of(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(3, 60), rng.randint(1, 20)
    (n,) = shape.names
    return Draft(
        shape, f"the larger of {n} and {a}, plus {b}", (f"print(max({n}, {a}) + {b})",),
        lambda v: (v if v > a else a) + b, near(a, a + 20),
    )  # fmt: skip


def smaller_of(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(3, 60), rng.randint(1, 20)
    (n,) = shape.names
    return Draft(
        shape, f"the smaller of {n} and {a}, minus {b}", (f"print(min({n}, {a}) - {b})",),
        lambda v: sorted([v, a])[0] - b, near(a, a - 20),
    )  # fmt: skip


def distance(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(3, 60), rng.randint(1, 20)
    (n,) = shape.names
    return Draft(
        shape, f"the distance of {n} from {a}, plus {b}", (f"print(abs({n} - {a}) + {b})",),
        lambda v: max(v - a, a - v) + b, near(a),
    )  # fmt: skip


def sum_of_two(rng: random.Random) -> Draft:
    shape, b = integers(rng, 2), rng.randint(0, 60)
    x, y = shape.names
    return Draft(shape, f"the sum of {x}, {y} and {b}", (f"print({x} + {y} + {b})",), lambda v, w: sum((v, w, b)))


def product_less(rng: random.Random) -> Draft:
    shape, b = integers(rng, 2, -9, 20), rng.randint(1, 60)
    x, y = shape.names
    return Draft(shape, f"{x} times {y} minus {b}", (f"print({x} * {y} - {b})",), lambda v, w: -b + w * v)


def weighted_pair(rng: random.Random) -> Draft:
    shape, a, b = integers(rng, 2), rng.randint(2, 9), rng.randint(2, 9)
    x, y = shape.names
    return Draft(
        shape, f"{a} times {x} minus {b} times {y}", (f"print({a} * {x} - {b} * {y})",),
        lambda v, w: sum([v] * a) - sum([w] * b),
    )  # fmt: skip


# Level 2: a decision, or three numbers.


def either(rng: random.Random) -> Draft:
    shape, a, b, c = integer(rng), rng.randint(3, 40), rng.randint(2, 9), rng.randint(1, 50)
    (n,) = shape.names
    return Draft(
        shape, f"{n} times {b} if {n} is above {a}, else {n} minus {c}",
        (f"if {n} > {a}:", f"    print({n} * {b})", "else:", f"    print({n} - {c})"),
        lambda v: [v - c, v * b][v > a], near(a),
    )  # fmt: skip


def divisible(rng: random.Random) -> Draft:
    shape, a, yes, no = integer(rng, 0), rng.randint(2, 9), letters(rng), letters(rng)
    (n,) = shape.names
    return Draft(
        shape, f"{n} and then '{yes}' if {n} can be divided by {a}, else {n} and then '{no}!'",
        (f"if {n} % {a} == 0:", f"    print(f'{{{n}}}{yes}')", "else:", f"    print(f'{{{n}}}{no}!')"),
        lambda v: f"{v}{yes if v // a * a == v else no + '!'}", [(a * 2,), (a * 3,), (a * 5,)],
    )  # fmt: skip


def clamp(rng: random.Random) -> Draft:
    shape, low = integer(rng), rng.randint(1, 30)
    (n,) = shape.names
    high = low + rng.randint(10, 40)
    return Draft(
        shape, f"{n}, but at least {low} and at most {high}", (f"print(min(max({n}, {low}), {high}))",),
        lambda v: sorted((low, v, high))[1], [*near(low, high), *((low + i,) for i in range(2, 8))],
    )  # fmt: skip


def three_ways(rng: random.Random) -> Draft:
    shape, a, b = integer(rng), rng.randint(5, 40), rng.randint(2, 9)
    (n,) = shape.names
    return Draft(
        shape, f"{a} minus {n} if {n} is below {a}, {b} if it is {a}, else {n} minus {a} times {b}",
        (f"if {n} < {a}:", f"    print({a} - {n})", f"elif {n} == {a}:", f"    print({b})",
         "else:", f"    print({n} - {a} * {b})"),
        lambda v: b if v == a else (a - v if v < a else v - sum([b] * a)), near(a),
    )  # fmt: skip


def halve_or_triple(rng: random.Random) -> Draft:
    shape, a, b = integer(rng, 0), rng.randint(3, 7), rng.randint(1, 30)
    (n,) = shape.names
    return Draft(
        shape, f"half of {n} if {n} is even, else {a} times {n} plus {b}",
        (f"print({n} // 2 if {n} % 2 == 0 else {a} * {n} + {b})",),
        lambda v: v * a + b if v & 1 else v >> 1,
    )  # fmt: skip


def middle_of_three(rng: random.Random) -> Draft:
    shape, b = integers(rng, 3), rng.randint(1, 60)
    x, y, z = shape.names
    return Draft(
        shape, f"the middle one of {x}, {y} and {z}, plus {b}", (f"print(sorted([{x}, {y}, {z}])[1] + {b})",),
        lambda u, v, w: u + v + w - max(u, v, w) - min(u, v, w) + b,
    )  # fmt: skip


def spread_of_three(rng: random.Random) -> Draft:
    shape, a = integers(rng, 3), rng.randint(2, 20)
    x, y, z = shape.names
    return Draft(
        shape, f"the largest of {x}, {y} and {z} minus the smallest, times {a}",
        (f"print((max({x}, {y}, {z}) - min({x}, {y}, {z})) * {a})",),
        lambda u, v, w: a * max(abs(u - v), abs(v - w), abs(u - w)),
    )  # fmt: skip


def larger_scaled(rng: random.Random) -> Draft:
    shape, a, b = integers(rng, 2), rng.randint(2, 9), rng.randint(2, 9)
    x, y = shape.names
    return Draft(
        shape, f"{x} times {a} if {x} is above {y}, else {y} times {b}",
        (f"if {x} > {y}:", f"    print({x} * {a})", "else:", f"    print({y} * {b})"),
        lambda v, w: v * a if w < v else w * b,
    )  # fmt: skip


def clock(rng: random.Random) -> Draft:
    shape, a, hours = integer(rng, 0, 200), rng.randint(1, 40), rng.choice((7, 10, 12, 24, 60))
    (n,) = shape.names
    return Draft(
        shape, f"the full rounds and the rest, with a space between, when {n} plus {a} is counted in rounds of {hours}",
        (f"print(({n} + {a}) // {hours}, ({n} + {a}) % {hours})",),
        lambda v: "{} {}".format(*divmod(v + a, hours)),
    )  # fmt: skip


LEVEL_1 = (
    times_plus, times_minus, plus_times, taken_from, square_plus, square_less, remainder_plus, quotient_plus,
    larger_of, smaller_of, distance, sum_of_two, product_less, weighted_pair,
)  # fmt: skip
LEVEL_2 = (
    either, divisible, clamp, three_ways, halve_or_triple, middle_of_three, spread_of_three, larger_scaled, clock,
)  # fmt: skip
