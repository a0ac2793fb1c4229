"""Programs about words and lines of words: level 2 is one expression, levels 3 and 4 loop over letters or words."""

from __future__ import annotations

import itertools
import random
import re

from practicum.environments.affine.programs.base import LETTERS, WORDS, Draft, digits, letters, sentence, word

ALPHABET = "abcdefghijklmnopqrstuvwxyz"

# Level 2: one expression.


def repeated(rng: random.Random) -> Draft:
    shape, a, end = word(rng), rng.randint(2, 5), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"{s} {a} times in a row and then '{end}'", (f"print({s} * {a} + '{end}')",),
        lambda v: "".join([v] * a) + end,
    )  # fmt: skip


def between(rng: random.Random) -> Draft:
    shape, left, right = word(rng), letters(rng), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"{s} between '{left}' and '{right}'", (f"print('{left}' + {s} + '{right}')",),
        lambda v: f"{left}{v}{right}",
    )  # fmt: skip


def first_letters(rng: random.Random) -> Draft:
    shape, a, end = word(rng), rng.randint(1, 4), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"the first {a} letters of {s} and then '{end}'", (f"print({s}[:{a}] + '{end}')",),
        lambda v: "".join(c for i, c in enumerate(v) if i < a) + end,
    )  # fmt: skip


def backwards(rng: random.Random) -> Draft:
    shape, end = word(rng), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"{s} backwards and then '{end}'", (f"print({s}[::-1] + '{end}')",),
        lambda v: "".join(reversed(v)) + end,
    )  # fmt: skip


def count_letter(rng: random.Random) -> Draft:
    shape, letter, b = word(rng), rng.choice(LETTERS), rng.randint(1, 60)
    (s,) = shape.names
    return Draft(
        shape, f"how many '{letter}' are in {s}, plus {b}", (f"print({s}.count('{letter}') + {b})",),
        lambda v: sum(c == letter for c in v) + b, [(letter * n + rng.choice(WORDS),) for n in (1, 2, 3, 4)],
    )  # fmt: skip


def length_scaled(rng: random.Random) -> Draft:
    shape, a, b = word(rng), rng.randint(2, 9), rng.randint(1, 60)
    (s,) = shape.names
    return Draft(
        shape, f"the number of letters of {s}, times {a}, plus {b}", (f"print(len({s}) * {a} + {b})",),
        lambda v: sum(a for _ in v) + b,
    )  # fmt: skip


def loud(rng: random.Random) -> Draft:
    shape, end, a = word(rng), letters(rng), rng.randint(1, 3)
    (s,) = shape.names
    return Draft(
        shape, f"{s} in capital letters, then '{end}', then {a} exclamation marks",
        (f"print({s}.upper() + '{end}' + '!' * {a})",),
        lambda v: "".join(chr(ord(c) - 32) for c in v) + end + "!!!"[:a],
    )  # fmt: skip


def swap_letter(rng: random.Random) -> Draft:
    shape, end = word(rng), letters(rng)
    old, new = rng.sample(LETTERS, 2)
    (s,) = shape.names
    return Draft(
        shape, f"{s} with every '{old}' made '{new}', and then '{end}'",
        (f"print({s}.replace('{old}', '{new}') + '{end}')",),
        lambda v: new.join(v.split(old)) + end, [(old * n + rng.choice(WORDS),) for n in (1, 2)],
    )  # fmt: skip


def every_few(rng: random.Random) -> Draft:
    shape, a, end = word(rng), rng.randint(2, 3), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"every letter of {s} whose place, counted from 0, can be divided by {a}, and then '{end}'",
        (f"print({s}[::{a}] + '{end}')",),
        lambda v: "".join(c for i, c in enumerate(v) if i % a == 0) + end,
    )  # fmt: skip


# Level 3: over letters, or the words of a line.


def shifted(rng: random.Random) -> Draft:
    shape, a, end = word(rng), rng.randint(1, 25), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"{s} with every letter moved {a} places on in the alphabet, z followed by a, and then '{end}'",
        ("out = ''", f"for c in {s}:", f"    out += chr((ord(c) - 97 + {a}) % 26 + 97)", f"print(out + '{end}')"),
        lambda v: v.translate(str.maketrans(ALPHABET, ALPHABET[a:] + ALPHABET[:a])) + end,
    )  # fmt: skip


def without_vowels(rng: random.Random) -> Draft:
    shape, mark, end = word(rng), rng.choice("-+*_"), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"{s} with every vowel (a, e, i, o, u) made '{mark}', and then '{end}'",
        ("out = ''", f"for c in {s}:", f"    out += '{mark}' if c in 'aeiou' else c", f"print(out + '{end}')"),
        lambda v: re.sub("[aeiou]", mark, v) + end,
    )  # fmt: skip


def letter_values(rng: random.Random) -> Draft:
    shape, a, b = word(rng), rng.randint(1, 5), rng.randint(1, 60)
    (s,) = shape.names
    return Draft(
        shape, f"the sum of the letters of {s}, where a is {a}, b is {a + 1} and so on, plus {b}",
        ("total = 0", f"for c in {s}:", f"    total += ord(c) - 97 + {a}", f"print(total + {b})"),
        lambda v: sum(ALPHABET.index(c) + a for c in v) + b,
    )  # fmt: skip


def long_words(rng: random.Random) -> Draft:
    shape, a, glue, end = sentence(rng, 3, 6), rng.randint(2, 4), rng.choice("-+/*"), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"the words of {s} with more than {a} letters, joined by '{glue}', and then '{end}'",
        (f"words = [c for c in {s}.split() if len(c) > {a}]", f"print('{glue}'.join(words) + '{end}')"),
        lambda v: glue.join(filter(lambda c: len(c) >= a + 1, v.split(" "))) + end,
    )  # fmt: skip


def word_lengths(rng: random.Random) -> Draft:
    shape, a, b = sentence(rng), rng.randint(1, 5), rng.randint(0, 20)
    (s,) = shape.names
    return Draft(
        shape, f"the number of letters of each word of {s}, times {a}, plus {b}, with spaces between",
        (f"print(*[len(c) * {a} + {b} for c in {s}.split()])",),
        lambda v: " ".join(str(sum(a for _ in c) + b) for c in v.split(" ")),
    )  # fmt: skip


def initials(rng: random.Random) -> Draft:
    shape, glue, end = sentence(rng), rng.choice(".-/"), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"the first letters of the words of {s} as capitals, joined by '{glue}', and then '{end}'",
        (f"print('{glue}'.join(c[0].upper() for c in {s}.split()) + '{end}')",),
        lambda v: glue.join(re.findall(r"\b[a-z]", v)).upper() + end,
    )  # fmt: skip


# Level 4: several steps.


def run_lengths(rng: random.Random) -> Draft:
    shape, end = digits(rng, rng.choice(("ab", "xy", "01", "abc")), "few kinds of letters"), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"each run of one letter in {s} as the letter and how often it stands there, all in a row, and then "
        f"'{end}'",
        ("out, i = '', 0", f"while i < len({s}):", "    j = i", f"    while j < len({s}) and {s}[j] == {s}[i]:",
         "        j += 1", f"    out += {s}[i] + str(j - i)", "    i = j", f"print(out + '{end}')"),
        lambda v: "".join(f"{c}{len(list(run))}" for c, run in itertools.groupby(v)) + end,
    )  # fmt: skip


def longest_word(rng: random.Random) -> Draft:
    shape, a, end = sentence(rng, 2, 6), rng.randint(1, 20), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"the longest word of {s} (the first of them), then '{end}', then its number of letters plus {a}",
        ("best = ''", f"for c in {s}.split():", "    if len(c) > len(best):", "        best = c",
         f"print(best + '{end}' + str(len(best) + {a}))"),
        lambda v: (lambda best: f"{best}{end}{len(best) + a}")(sorted(v.split(), key=len, reverse=True)[0]),
    )  # fmt: skip


def sorted_words(rng: random.Random) -> Draft:
    shape, glue, end = sentence(rng, 3, 6), rng.choice("-+/"), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"the words of {s}, shortest first and equally long ones in alphabetical order, joined by '{glue}', "
        f"and then '{end}'",
        (f"words = sorted({s}.split(), key=lambda c: (len(c), c))", f"print('{glue}'.join(words) + '{end}')"),
        lambda v: glue.join(sorted(sorted(v.split(" ")), key=len)) + end,
    )  # fmt: skip


def letter_counts(rng: random.Random) -> Draft:
    shape, a = word(rng), rng.randint(0, 60)
    (s,) = shape.names
    return Draft(
        shape, f"for each letter that is in {s}, in alphabetical order, a line with the letter, a space, and {a} plus "
        "how often it is there",
        (f"for c in sorted(set({s})):", f"    print(c, {s}.count(c) + {a})"),
        lambda v: [f"{c} {sum(c == d for d in v) + a}" for c in ALPHABET if c in v],
    )  # fmt: skip


def words_turned(rng: random.Random) -> Draft:
    shape, a, end = sentence(rng), rng.randint(2, 5), letters(rng)
    (s,) = shape.names
    return Draft(
        shape, f"the words of {s} with spaces between, each word of more than {a} letters backwards, and then '{end}'",
        (f"words = [c[::-1] if len(c) > {a} else c for c in {s}.split()]", f"print(' '.join(words) + '{end}')"),
        lambda v: re.sub(rf"[a-z]{{{a + 1},}}", lambda m: "".join(reversed(m[0])), v) + end,
    )  # fmt: skip


def palindrome_or_not(rng: random.Random) -> Draft:
    shape, a, b = word(rng), rng.randint(2, 9), rng.randint(10, 60)
    (s,) = shape.names
    return Draft(
        shape, f"how many places of {s} hold the same letter when it is read backwards, times {a}, plus {b}",
        ("count = 0", f"for i in range(len({s})):", f"    if {s}[i] == {s}[len({s}) - 1 - i]:", "        count += 1",
         f"print(count * {a} + {b})"),
        lambda v: sum(c == d for c, d in zip(v, reversed(v), strict=True)) * a + b,
        [("noon",), ("level",), ("radar",), ("abca",), ("xyzzyx",)],
    )  # fmt: skip


LEVEL_2 = (repeated, between, first_letters, backwards, count_letter, length_scaled, loud, swap_letter, every_few)
LEVEL_3 = (shifted, without_vowels, letter_values, long_words, word_lengths, initials)
LEVEL_4 = (run_lengths, longest_word, sorted_words, letter_counts, words_turned, palindrome_or_not)
