"""Programs of level 5: nesting, commands, intervals, counting paths, dynamic programming."""

from __future__ import annotations

import itertools
import random

from practicum.environments.affine.programs.base import (
    WORDS,
    Draft,
    counted_lines,
    digits,
    integer,
    integers,
    letters,
    list_and_number,
    numbers,
    sentence,
)


def bracket_depth(rng: random.Random) -> Draft:
    shape, a, b = digits(rng, "()", "brackets"), rng.randint(1, 9), rng.randint(10, 60)
    (s,) = shape.names
    samples = [("(())",), ("()()",), ("((()))",), ("(()())()",), ("()",), ("(((())))",), ("())",)]

    def depth(v: str) -> int:
        heights = list(itertools.accumulate(1 if c == "(" else -1 for c in v))
        return max(heights) * a if min(heights) >= 0 and heights[-1] == 0 else b

    return Draft(
        shape, f"how deep the brackets of {s} are nested at most, times {a}, or {b} if they do not match",
        ("depth, most, good = 0, 0, True", f"for c in {s}:", "    depth += 1 if c == '(' else -1",
         "    most = max(most, depth)", "    good = good and depth >= 0",
         f"print(most * {a} if good and depth == 0 else {b})"),
        depth, samples,
    )  # fmt: skip


def stack_machine(rng: random.Random) -> Draft:
    first, a = rng.randint(0, 20), rng.randint(2, 9)

    def command(r: random.Random) -> str:
        return r.choice((f"add {r.randint(1, 30)}", f"sub {r.randint(1, 30)}", "mul", "neg"))

    shape = counted_lines(rng, "each 'add N', 'sub N', 'mul' or 'neg'", command)
    (xs,) = shape.names
    effects = {"add": lambda v, n: v + n, "sub": lambda v, n: v - n, "mul": lambda v, n: v * a, "neg": lambda v, n: -v}

    def run(v: list[str]) -> int:
        value = first
        for line in v:
            name, _, number = line.partition(" ")
            value = effects[name](value, int(number or 0))
        return value

    return Draft(
        shape, f"what becomes of {first} by these commands in turn: add N, subtract N, multiply by {a}, change the "
        "sign",
        (f"value = {first}", f"for line in {xs}:", "    words = line.split()", "    if words[0] == 'add':",
         "        value += int(words[1])", "    elif words[0] == 'sub':", "        value -= int(words[1])",
         "    elif words[0] == 'mul':", f"        value *= {a}", "    else:", "        value = -value", "print(value)"),
        run,
    )  # fmt: skip


def account(rng: random.Random) -> Draft:
    first, fee = rng.randint(20, 120), rng.randint(1, 9)

    def command(r: random.Random) -> str:
        return f"{r.choice(('in', 'out', 'out'))} {r.randint(1, 60)}"

    shape = counted_lines(rng, "each 'in N' or 'out N'", command)
    (xs,) = shape.names

    def run(v: list[str]) -> list[int]:
        balances = [first]
        for line in v:
            change = int(line.split()[1]) if line.startswith("in ") else -int(line.split()[1]) - fee
            balances.append(balances[-1] + change if balances[-1] + change >= 0 else balances[-1])
        return balances[1:]

    return Draft(
        shape, f"what an account that begins with {first} holds after each line: 'in N' adds N, 'out N' takes N and a "
        f"fee of {fee} and is left out if there is not enough; one a line",
        (f"held = {first}", f"for line in {xs}:", "    kind, number = line.split()", "    if kind == 'in':",
         "        held += int(number)", f"    elif held >= int(number) + {fee}:",
         f"        held -= int(number) + {fee}", "    print(held)"),
        run,
    )  # fmt: skip


def robot(rng: random.Random) -> Draft:
    shape, a, b = digits(rng, "LRF", "the letters L, R and F", 4, 10), rng.randint(1, 20), rng.randint(1, 20)
    (s,) = shape.names

    def walk(v: str) -> str:
        position, heading = complex(a, b), 1j
        for c in v:
            heading *= {"L": 1j, "R": -1j, "F": 1}[c]
            position += heading if c == "F" else 0
        return f"{round(position.real)} {round(position.imag)}"

    return Draft(
        shape, f"where a robot ends, x and y with a space between, that begins at x {a}, y {b} looking along y and "
        f"reads {s}: L and R turn it a quarter to the left or right, F moves it one on",
        (f"px, py, dx, dy = {a}, {b}, 0, 1", f"for c in {s}:", "    if c == 'L':", "        dx, dy = -dy, dx",
         "    elif c == 'R':", "        dx, dy = dy, -dx", "    else:", "        px, py = px + dx, py + dy",
         "print(px, py)"),
        walk,
    )  # fmt: skip


def best_stretch(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng, -12, 12, 4, 8), rng.randint(1, 9), rng.randint(0, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"the largest sum of numbers of {xs} that stand next to each other (at least one), times {a}, plus {b}",
        (f"best = here = {xs}[0]", f"for i in {xs}[1:]:", "    here = max(i, here + i)", "    best = max(best, here)",
         f"print(best * {a} + {b})"),
        lambda v: max(sum(v[i:j]) for i in range(len(v)) for j in range(i + 1, len(v) + 1)) * a + b,
    )  # fmt: skip


def rising_length(rng: random.Random) -> Draft:
    shape, a, b = numbers(rng, 0, 20, 4, 7), rng.randint(2, 20), rng.randint(0, 60)
    (xs,) = shape.names
    return Draft(
        shape, f"how many numbers of {xs} can be kept at most so that each is above the one kept before it, times {a}, "
        f"plus {b}",
        ("best = []", f"for i, new in enumerate({xs}):",
         f"    best.append(1 + max([best[j] for j in range(i) if {xs}[j] < new], default=0))",
         f"print(max(best) * {a} + {b})"),
        lambda v: max(size for size in range(1, len(v) + 1) for chosen in itertools.combinations(v, size)
                      if all(p < q for p, q in itertools.pairwise(chosen))) * a + b,
        [([1, 2, 3, 4, 5],), ([9, 5, 4, 1],), ([1, 9, 2, 8, 3],), ([7, 7, 7, 7],)],
    )  # fmt: skip


def coin_ways(rng: random.Random) -> Draft:
    coins = sorted(rng.sample(range(1, 9), 3))
    shape, a = integer(rng, 1, 30), rng.randint(0, 60)
    (n,) = shape.names
    p, q, r = coins
    return Draft(
        shape, f"in how many ways {n} can be paid with coins of {p}, {q} and {r} (their order does not matter), plus "
        f"{a}",
        (f"ways = [1] + [0] * {n}", f"for coin in ({p}, {q}, {r}):", f"    for i in range(coin, {n} + 1):",
         "        ways[i] += ways[i - coin]", f"print(ways[{n}] + {a})"),
        lambda v: sum((v - i * p - j * q) % r == 0 for i in range(v // p + 1) for j in range((v - i * p) // q + 1)) + a,
    )  # fmt: skip


def pairs_with_sum(rng: random.Random) -> Draft:
    shape, a, b = list_and_number(rng, 2, 12, 4, 8), rng.randint(1, 9), rng.randint(0, 60)
    xs, k = shape.names
    edges = [([1, 2, 3, 4, 5, 6], 7), ([2, 2, 2, 2], 4), ([0, 5, 5, 0], 5), ([1, 3, 5, 7], 8)]
    return Draft(
        shape, f"how many pairs of places in {xs} hold numbers with the sum {k}, times {a}, plus {b}",
        ("seen, count = {}, 0", f"for i in {xs}:", f"    count += seen.get({k} - i, 0)",
         "    seen[i] = seen.get(i, 0) + 1", f"print(count * {a} + {b})"),
        lambda v, w: sum(p + q == w for p, q in itertools.combinations(v, 2)) * a + b, edges,
    )  # fmt: skip


def last_standing(rng: random.Random) -> Draft:
    shape, a, b = integer(rng, 2, 40), rng.randint(2, 7), rng.randint(0, 60)
    (n,) = shape.names

    def left(v: int) -> int:
        return 0 if v == 1 else (left(v - 1) + a) % v

    return Draft(
        shape, f"which of the people 1 to {n} in a circle is left in the end, counting from 1, when each time the one "
        f"counted {a} goes, plus {b}",
        (f"people, i = list(range(1, {n} + 1)), 0", "while len(people) > 1:", f"    i = (i + {a - 1}) % len(people)",
         "    people.pop(i)", f"print(people[0] + {b})"),
        lambda v: left(v) + 1 + b,
    )  # fmt: skip


def commonest_word(rng: random.Random) -> Draft:
    few = rng.sample(WORDS, 3)
    shape, end, a = counted_lines(rng, "each a word", lambda r: r.choice(few)), letters(rng), rng.randint(1, 20)
    (xs,) = shape.names
    return Draft(
        shape, f"the commonest of {xs}, of equally common ones the first in alphabetical order, then '{end}', then {a} "
        "plus how often it is there",
        (f"best = min({xs}, key=lambda c: (-{xs}.count(c), c))",
         f"print(best + '{end}' + str({xs}.count(best) + {a}))"),
        lambda v: max((v.count(c), [-ord(d) for d in c] + [0], f"{c}{end}{v.count(c) + a}") for c in v)[2],
    )  # fmt: skip


def histogram(rng: random.Random) -> Draft:
    shape, mark, a = numbers(rng, 0, 9, 2, 5), rng.choice("#*+=o"), rng.randint(1, 4)
    (xs,) = shape.names
    return Draft(
        shape, f"for each number of {xs} a line with the number, a colon, and '{mark}' as often as the number plus {a}",
        (f"for i in {xs}:", f"    print(f'{{i}}:' + '{mark}' * (i + {a}))"),
        lambda v: [f"{n}:".ljust(len(str(n)) + 1 + n + a, mark) for n in v],
    )  # fmt: skip


def common_subsequence(rng: random.Random) -> Draft:
    a, b = rng.randint(1, 9), rng.randint(0, 60)
    shape = sentence(rng, 2, 2)
    (s,) = shape.names

    def common(p: str, q: str) -> int:
        if not p or not q:
            return 0
        if p[0] == q[0]:
            return 1 + common(p[1:], q[1:])
        return max(common(p[1:], q), common(p, q[1:]))

    return Draft(
        shape, f"how many letters the two words of {s} have in common at most in the same order, times {a}, plus {b}",
        (f"p, q = {s}.split()", "row = [0] * (len(q) + 1)", "for c in p:", "    new = [0]",
         "    for j in range(len(q)):",
         "        new.append(row[j] + 1 if c == q[j] else max(row[j + 1], new[j]))", "    row = new",
         f"print(row[-1] * {a} + {b})"),
        lambda v: common(*v.split()) * a + b, [("level letter",), ("stone nest",), ("banana banana",), ("oar root",)],
    )  # fmt: skip


def spans_merged(rng: random.Random) -> Draft:
    a, b = rng.randint(1, 5), rng.randint(0, 40)

    def span(r: random.Random) -> str:
        low = r.randint(0, 20)
        return f"{low} {low + r.randint(1, 8)}"

    shape = counted_lines(rng, "each the two ends of a span", span)
    (xs,) = shape.names

    def covered(v: list[str]) -> int:
        ends = [tuple(map(int, line.split())) for line in v]
        return len({position for low, high in ends for position in range(low, high)}) * a + b

    return Draft(
        shape, f"how much of the number line the spans cover together, times {a}, plus {b}",
        (f"spans = sorted(tuple(map(int, line.split())) for line in {xs})", "total, reached = 0, 0",
         "for low, high in spans:", "    total += max(0, high - max(low, reached))", "    reached = max(reached, high)",
         f"print(total * {a} + {b})"),
        covered,
    )  # fmt: skip


def grid_paths(rng: random.Random) -> Draft:
    shape, a, b = integers(rng, 2, 1, 7), rng.randint(1, 5), rng.randint(0, 60)
    x, y = shape.names

    def ways(v: int, w: int) -> int:
        return 1 if v == 0 or w == 0 else ways(v - 1, w) + ways(v, w - 1)

    return Draft(
        shape, f"in how many ways one can go {x} steps right and {y} steps up, times {a}, plus {b}",
        (f"row = [1] * ({x} + 1)", f"for _ in range({y}):", f"    for i in range(1, {x} + 1):",
         "        row[i] += row[i - 1]", f"print(row[-1] * {a} + {b})"),
        lambda v, w: ways(v, w) * a + b,
    )  # fmt: skip


LEVEL_5 = (
    bracket_depth, stack_machine, account, robot, best_stretch, rising_length, coin_ways, pairs_with_sum,
    last_standing, commonest_word, histogram, common_subsequence, spans_merged, grid_paths,
)  # fmt: skip
