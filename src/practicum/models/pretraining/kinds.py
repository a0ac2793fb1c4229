"""Kinds of generated conversations whose answers can be read off the prompt: copying, look-up, reordering, next item.

Words, keys and values are random, and separators, forms and wordings vary: a model learns the skill, not a format or a
fact. No text, template, goal, tool or word combination of the package's environments is used, so that every task of
every environment stays held out for a model that was trained on this text.
"""

from __future__ import annotations

from collections.abc import Callable

from practicum.models.pretraining.words import Words

Turns = list[tuple[str, str]]
"""Role and content of each message; the last one is the assistant's."""
Form = Callable[[str], str]


def ask(words: Words, text: str, answer: str, system: str = "") -> Turns:
    """One question and its answer, under the given system message, an irrelevant one, or none."""
    rng = words.rng
    if system and rng.random() < 0.3:
        text, system = (f"{text}\n{system}", "") if rng.random() < 0.5 else (f"{system}\n{text}", "")
    if not system and rng.random() < 0.3:
        system = " ".join(words.word() for _ in range(rng.randint(1, 25))).capitalize() + rng.choice((".", "", ":"))
    return [*([("system", system)] if system else []), ("user", text), ("assistant", answer)]


def reply_form(words: Words) -> tuple[str, Form]:
    """A form of the answer: the sentence that asks for it, with a placeholder, and the function that fills it in."""
    rng = words.rng
    draw = rng.random()
    if draw < 0.3:
        return "", str
    name = words.word() if rng.random() < 0.7 else words.code()
    argument = words.word()
    if draw < 0.5:
        form = f"{name}({{}})" if rng.random() < 0.4 else rng.choice((f'{name}("{{}}")', f"{name}('{{}}')"))
    elif draw < 0.6:
        form = rng.choice((f'{{"{name}": "{{}}"}}', f"{name}: {{}}", f"{name}[{{}}]", f"{name} {{}}", f"<{name}>{{}}"))
    elif draw < 0.7:
        form = rng.choice(("[{}]", "<{}>", "({})", '"{}"', "{}.", "Answer: {}", "The answer is {}.", "#### {}"))
    else:
        call = f'{{"name": "{name}", "arguments": {{"{argument}": "{{}}"}}}}'
        signature = f"{name}({argument}): {' '.join(words.word() for _ in range(rng.randint(1, 8)))}"
        others = [f"{words.word()}({words.word()}): {words.phrase()}" for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        return _call_form(words, name, argument, signature, others, call)
    placeholder = rng.choice(("...", "X", "ID", "VALUE", "<answer>", "...", words.word().upper()))
    lead = rng.choice(("Reply with", "Write", "Answer as", "Form of the answer:", "Use", "Give the answer as"))
    return f"{lead} {fill(form, placeholder)}{rng.choice(('', '.'))}", lambda value: fill(form, value)


def fill(form: str, value: str) -> str:
    """Replace the last empty pair of braces; forms contain other braces, so `str.format` is of no use."""
    head, _, tail = form.rpartition("{}")
    return head + value + tail


def _call_form(
    words: Words, name: str, argument: str, signature: str, others: list[str], call: str
) -> tuple[str, Form]:
    """A function call in one of two notations, with its signature among others; the text says which one to call."""
    rng = words.rng
    lines = [*others, signature]
    rng.shuffle(lines)
    lead = f"Call {name}" if others or rng.random() < 0.5 else "Call the function"
    if rng.random() < 0.65:
        form = f"<tool_call>{call}</tool_call>"
    else:
        form = f'Action: {name}\nAction Input: {{"{argument}": "{{}}"}}'
        lead += rng.choice((" as Action and Action Input", ". Form: Action, Action Input"))
    return f"{lead}.\n" + "\n".join(lines), lambda value: fill(form, value)


def repeat(words: Words) -> Turns:
    """A sequence of words, digits, marks or arbitrary pieces of the vocabulary, to be written again."""
    rng = words.rng
    count = words.count(2, 60)
    draw = rng.random()
    if draw < 0.3:
        sequence = words.separator().join(words.symbol() for _ in range(count))
    elif draw < 0.5:
        sequence = words.separator().join(words.word() for _ in range(count))
    elif draw < 0.7:
        sequence = "".join(rng.choice(("", " ", "")) + rng.choice(words.pieces) for _ in range(count)).strip()
    elif draw < 0.8:
        sequence = "".join(rng.choices("0123456789", k=count))
    else:
        sequence = "\n".join(f"{rng.choice(('- ', '* ', ''))}{words.phrase()}" for _ in range(words.count(2, 14)))
    lead = rng.choice(("Repeat", "Copy", "Write again", "Say this again", "Repeat the text", "Echo", "Write this down"))
    times = 2 if count < 15 and rng.random() < 0.1 else 1
    question = f"{lead}{' twice' if times == 2 else ''}{rng.choice((':', '.', ''))}{rng.choice((' ', chr(10)))}"
    return ask(words, question + sequence, "\n".join([sequence] * times))


def _table(words: Words, keys: list[str], values: list[str], field: str) -> str:
    """The lines of a table in one of many notations."""
    rng = words.rng
    styles: tuple[Callable[[str, str], str], ...] = (
        lambda key, value: f"{key} [{value}]",
        lambda key, value: f"[{value}] {key}",
        lambda key, value: f"{value} {key}",
        lambda key, value: f"{key}: {value}",
        lambda key, value: f"{key} = {value}",
        lambda key, value: f"- {key} = {value}",
        lambda key, value: f"- {key} ({value})",
        lambda key, value: f"{key}, {value}",
        lambda key, value: f"{key}\t{value}",
        lambda key, value: f"| {key} | {value} |",
        lambda key, value: f'"{key}": "{value}",',
        lambda key, value: f"{value}: {key}",
        lambda key, value: f"{value}. {key}",
        lambda key, value: f"<{field} id={value}>{key}</{field}>",
        lambda key, value: f"[{value}] {field} '{key}'",
        lambda key, value: f'{field} "{key}" [{value}]',
        lambda key, value: f"The {field} of {key} is {value}.",
        lambda key, value: f"{key} -> {value}",
    )
    style = rng.choice(styles)
    indent = rng.random() < 0.1
    lines = [(" " * rng.choice((0, 2, 4)) if indent else "") + style(*pair) for pair in zip(keys, values, strict=True)]
    if rng.random() < 0.2:  # lines between the others that have nothing to do with them
        for _ in range(rng.randint(1, 4)):
            lines.insert(rng.randint(0, len(lines)), words.phrase(8))
    return rng.choice(("\n", "\n", "\n", "\n", "; ", " ")).join(lines)


def _values(words: Words, count: int) -> list[str]:
    """Values of a table: mostly numbers, in order or not, else codes or phrases."""
    rng = words.rng
    draw = rng.random()
    if draw < 0.3:
        first = rng.choice((0, 1, 1, 1, rng.randint(2, 40)))
        return [str(first + index) for index in range(count)]
    if draw < 0.65:
        return [str(value) for value in rng.sample(range(1, 100), count)]
    return words.distinct(words.code if draw < 0.8 else words.value, count)


def look_up(words: Words) -> Turns:
    """A table and a question that names a key (or a part of it, or a value): the answer is on the same line."""
    rng = words.rng
    count = words.count(2, 60)
    keys, values = words.keys(count), _values(words, count)
    field = words.word()
    table = _table(words, keys, values, field)
    chosen = rng.randrange(count)
    key, answer = keys[chosen], values[chosen]
    instruction, form = reply_form(words)
    if rng.random() < 0.12:
        key, answer = answer, key
    elif rng.random() < 0.25:
        key = _part(words, key, [*keys[:chosen], *keys[chosen + 1 :]])
    if rng.random() < 0.15:
        key = f'"{key}"'
    question = rng.choice(
        (
            f"{key}", f"{key}?", f"Find {key}.", f"What is {key}?", f"Which {field} belongs to {key}?",
            f"Look up {key}.", f"{words.word().capitalize()} {key}.", f"{words.word()} {words.word()} {key}",
            f"Goal: {key}", f"{field} of {key}", f"I want {key}.", f"Choose {key} please.", f"{words.phrase(6)}: {key}",
        )
    )  # fmt: skip
    text = f"{question}\n{table}" if rng.random() < 0.5 else f"{table}\n{question}"
    return ask(words, text, form(answer), instruction)


def _part(words: Words, key: str, others: list[str]) -> str:
    """Some words of a key that no other key contains; the key itself where there are none."""
    parts = key.split(" ")
    if len(parts) < 2:
        return key
    first = words.rng.randrange(len(parts))
    part = " ".join(parts[first : first + words.rng.randint(1, len(parts) - 1)])
    return key if any(part in other for other in others) else part


def look_up_several(words: Words) -> Turns:
    """A table and several keys: the answers in the order of the question, or pairs of both."""
    rng = words.rng
    count = words.count(3, 25)
    keys, values = words.keys(count), _values(words, count)
    chosen = rng.sample(range(count), rng.randint(2, min(count, 6)))
    asked_keys = rng.choice((", ", " and ", "; ", "\n", " then ")).join(keys[index] for index in chosen)
    table = _table(words, keys, values, words.word())
    separator = rng.choice((", ", "\n", " ", "; ", ","))
    pairs = rng.random() < 0.4
    mark = rng.choice((": ", " = ", "=", " "))
    answer = separator.join(f"{keys[i]}{mark}{values[i]}" if pairs else values[i] for i in chosen)
    lead = f"With names, {mark.strip() or 'side by side'}: " if pairs else rng.choice(("", "Find ", "Look up: "))
    question = f"{lead}{asked_keys}"
    return ask(words, f"{question}\n{table}" if rng.random() < 0.5 else f"{table}\n{question}", answer)


def records(words: Words) -> Turns:
    """Records of several fields: one field of the record that another field names."""
    rng = words.rng
    fields = words.distinct(words.word, rng.randint(2, 5))
    count = words.count(2, 16)
    names = words.keys(count)
    rows = [[names[index], *(words.value() for _ in fields[1:])] for index in range(count)]
    style = rng.randrange(4)
    if style == 0:
        lines = [", ".join(fields), *(", ".join(row) for row in rows)]
    elif style == 1:
        lines = ["; ".join(f"{f}: {v}" for f, v in zip(fields, row, strict=True)) for row in rows]
    elif style == 2:
        lines = ["{" + ", ".join(f'"{f}": "{v}"' for f, v in zip(fields, row, strict=True)) + "}" for row in rows]
    else:
        lines = [
            f"{row[0]}\n" + "\n".join(f"  {f} {v}" for f, v in zip(fields[1:], row[1:], strict=True)) for row in rows
        ]
    row, column = rng.choice(rows), rng.randrange(1, len(fields))
    question = rng.choice(
        (f"What is the {fields[column]} of {row[0]}?", f"{row[0]}: {fields[column]}?", f"{fields[column]} of {row[0]}")
    )
    table = "\n".join(lines)
    instruction, form = reply_form(words)
    text = f"{question}\n{table}" if rng.random() < 0.5 else f"{table}\n{question}"
    return ask(words, text, form(row[column]), instruction)


def next_item(words: Words) -> Turns:
    """A list of items and those already done: the first that is not done, or `done`."""
    rng = words.rng
    items = words.keys(rng.randint(1, 8))
    ordered = rng.random() < 0.8
    done = items[: rng.randint(0, len(items))] if ordered else rng.sample(items, rng.randint(0, len(items)))
    remaining = [item for item in items if item not in done]
    if rng.random() < 0.6:
        goal = _sentence(words, items)
    else:
        bullet = rng.choice(("- ", "* ", "", "1"))
        goal = "\n".join(f"{index + 1}. {item}" if bullet == "1" else bullet + item for index, item in enumerate(items))
    end = rng.choice(("done", "done", "finished", "stop", "none"))
    heading = rng.choice(("Done:", "Already done:", "Finished:", "So far:", "History:", "Past steps:"))
    mark = rng.choice(("- ", "* ", "", "> "))
    if rng.random() < 0.3:  # on one line, with numbers
        past = rng.choice(("; ", ", ")).join(f"{index} {item}" for index, item in enumerate(done, start=1))
    else:
        past = "\n".join(f"{mark}{item}" for item in done)
    past = past or rng.choice(("(nothing)", "none", "-", ""))
    lead = rng.choice(("Goal", "Task", "Plan", "To do", "List"))
    instruction, form = reply_form(words)
    rule = rng.choice(("What is next?", "Next?", "Name the next one.", "Go on.")) + f" If nothing is left: {end}."
    text = f"{lead}: {goal}\n{heading}\n{past}\n{rule}"
    return ask(words, text, form(remaining[0]) if remaining else end, instruction)


def _sentence(words: Words, items: list[str]) -> str:
    """Several items in one sentence."""
    rng = words.rng
    if len(items) == 1:
        return items[0] + rng.choice(("", "."))
    joint = rng.choice((" and ", ", then ", ", and then ", ", ", " and then "))
    return rng.choice((", ", ", ", "; ")).join(items[:-1]) + joint + items[-1] + rng.choice(("", "."))


def edit(words: Words) -> Turns:
    """A list with one change: an element dropped, inserted, replaced or moved, or the order reversed."""
    rng = words.rng
    items = words.distinct(words.symbol, words.count(2, 14))
    first, second = rng.randrange(len(items)), rng.randrange(len(items))
    new = words.word()
    changed = list(items)
    draw = rng.random()
    if draw < 0.2:
        task, changed = rng.choice(("Reverse", "Write backwards", "From last to first")), items[::-1]
    elif draw < 0.4:
        task = rng.choice((f"Remove {items[first]}", f"Drop {items[first]}", f"Without {items[first]}"))
        changed = [item for item in items if item != items[first]]
    elif draw < 0.6:
        task = f"Replace {items[first]} by {new}"
        changed[first] = new
    elif draw < 0.75:
        task = f"Insert {new} after {items[first]}"
        changed.insert(first + 1, new)
    elif draw < 0.87:
        task = f"Swap {items[first]} and {items[second]}"
        changed[first], changed[second] = changed[second], changed[first]
    else:
        task = rng.choice(("Put the first at the end", "Move the first one last"))
        changed = [*items[1:], items[0]]
    separator = words.separator()
    text, answer = separator.join(items), separator.join(changed)
    return ask(words, f"{task}: {text}" if rng.random() < 0.6 else f"{text}\n{task}.", answer)


ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def choose(words: Words) -> Turns:
    """One element by its place, its size, its neighbour or a condition."""
    rng = words.rng
    separator = words.separator()
    instruction, form = reply_form(words)
    draw = rng.random()
    if draw < 0.4:
        items = words.distinct(words.symbol, words.count(2, 10))
        position = rng.randrange(min(len(items), len(ORDINALS)))
        if rng.random() < 0.3:
            question, answer = "last", items[-1]
        else:
            question, answer = rng.choice((ORDINALS[position], f"number {position + 1}")), items[position]
    elif draw < 0.6:
        items = words.distinct(words.symbol, words.count(3, 20))
        position = rng.randrange(len(items) - 1)
        after = rng.random() < 0.5
        question = f"after {items[position]}" if after else f"before {items[position + 1]}"
        answer = items[position + 1] if after else items[position]
    else:
        largest = rng.choice((9, 30, 99, 99, 999))
        items = words.distinct(lambda: words.number(largest), rng.randint(2, 7))
        smallest = rng.random() < 0.5
        question = rng.choice(
            ("smallest", "lowest", "least", "minimum") if smallest else ("largest", "highest", "most")
        )
        answer = str((min if smallest else max)(map(int, items)))
        if rng.random() < 0.5:
            names = words.keys(len(items))
            answer = names[items.index(answer)]
            return ask(words, f"{_table(words, names, items, 'x')}\nWho has the {question}?", form(answer), instruction)
    text = separator.join(items)
    return ask(
        words, f"{question}: {text}" if rng.random() < 0.5 else f"{text}\n{question}?", form(answer), instruction
    )


def sort_numbers(words: Words) -> Turns:
    """A few numbers in ascending or descending order."""
    rng = words.rng
    largest = rng.choice((9, 20, 99, 99, 999))
    items = words.distinct(lambda: words.number(largest), rng.randint(2, 6))
    down = rng.random() < 0.4
    separator = rng.choice((" ", ", ", ",", "; "))
    task = rng.choice(("Sort down", "From large to small") if down else ("Sort", "Sort up", "From small to large"))
    answer = separator.join(sorted(items, key=int, reverse=down))
    return ask(words, f"{task}: {separator.join(items)}", answer)


def parts(words: Words) -> Turns:
    """A sentence of several random actions: a numbered list of them, with what each one has to wait for.

    The words are random and without meaning; "then" makes an action wait for the one before it, "and" does not.
    """
    rng = words.rng
    actions = [" ".join(words.word() for _ in range(rng.randint(2, 5))) for _ in range(rng.randint(1, 6))]
    waits = [False, *(rng.random() < 0.5 for _ in actions[1:])]
    after, beside = rng.choice((", then ", " then ", ", after that ")), rng.choice((" and ", ", ", " and also "))
    sentence = actions[0] + "".join(
        (after if wait else beside) + a for a, wait in zip(actions[1:], waits[1:], strict=True)
    )
    first = rng.choice((0, 1, 1, 1))
    mark, arrow = rng.choice((": ", ". ", ") ", " = ")), rng.choice(("<", " <- ", " after ", " needs ", " | "))
    numbered = enumerate(zip(actions, waits, strict=True), start=first)
    lines = [f"{index}{mark}{action}" + (f"{arrow}{index - 1}" if wait else "") for index, (action, wait) in numbered]
    example = f"{first}{mark}...\n{first + 1}{mark}...{arrow}{first}"
    lead = rng.choice(("Split into parts", "List the parts", "Write a plan", "Divide", "Steps"))
    return ask(
        words, f"{sentence.capitalize() if rng.random() < 0.3 else sentence}.", "\n".join(lines), f"{lead}:\n{example}"
    )


def split_pairs(words: Words) -> Turns:
    """Actions with an object each, written as lines of the form asked for: `3: a, b`, `a(b)`, `b - a`."""
    rng = words.rng
    pairs = [(words.word(), words.phrase(3)) for _ in range(rng.randint(1, 6))]
    form = rng.choice(
        ("{n}: {a}, {b}", "{n}. {a} {b}", '{a}("{b}")', "{b}: {a}", "{a} - {b}", "{n} {b} [{a}]", "({a}, {b})")
    )
    placeholders = rng.choice((("A", "B"), ("verb", "object"), ("x", "y"), ("...", "___")))
    sentence = _sentence(words, [f"{verb} {rng.choice(('the ', '', ''))}{thing}" for verb, thing in pairs])

    def written(index: int, verb: str, thing: str) -> str:
        return form.replace("{n}", str(index)).replace("{a}", verb).replace("{b}", thing)

    example = written(1, *placeholders)
    names = f"{placeholders[0]} {placeholders[1]}"
    answer = "\n".join(written(index, *pair) for index, pair in enumerate(pairs, start=1))
    return ask(words, sentence, answer, f"{names} as {example}")


def dialogue(words: Words) -> Turns:
    """Several turns in which values that were given before are asked for, or the same form is used again."""
    rng = words.rng
    instruction, form = reply_form(words)
    turns: Turns = [("system", instruction)] if instruction else []
    values: dict[str, str] = {}
    acknowledged = rng.choice(("ok", "OK.", "noted", "yes", "Good."))
    for index in range(rng.randint(2, 7)):
        if not values or (rng.random() < 0.45 and index):
            key = words.phrase(2)
            values[key] = words.value()
            text = rng.choice((f"{key} is {values[key]}", f"{key}: {values[key]}", f"{key} = {values[key]}"))
            turns += [
                ("user", f"{words.phrase(6)}\n{text}" if rng.random() < 0.2 else text),
                ("assistant", acknowledged),
            ]
        else:
            key = rng.choice(list(values))
            turns += [("user", rng.choice((f"{key}?", f"What is {key}?", key))), ("assistant", form(values[key]))]
    key = rng.choice(list(values))
    return [*turns, ("user", f"{key}?"), ("assistant", form(values[key]))]


def walk_list(words: Words) -> Turns:
    """A goal of several items, each turn the next of them, with arbitrary observations between; in the end `done`."""
    rng = words.rng
    items = words.keys(rng.randint(2, 6))
    instruction, form = reply_form(words)
    end = rng.choice(("done", "finished", "stop"))
    goal = f"{rng.choice(('Goal', 'Task', 'Do'))}: {_sentence(words, items)}"
    turns: Turns = [("system", f"{instruction}\n{goal}".strip())] if rng.random() < 0.5 else []
    first = words.phrase(6) if turns else f"{instruction}\n{goal}".strip()
    ids = _values(words, len(items)) if rng.random() < 0.4 else items
    if ids is not items:
        order = rng.sample(range(len(items)), len(items))
        first += "\n" + _table(words, [items[i] for i in order], [ids[i] for i in order], words.word())
    for index, value in enumerate(ids):
        turns += [("user", first if not index else words.phrase(8)), ("assistant", form(value))]
    return [*turns, ("user", words.phrase(8)), ("assistant", end)]


def chain(words: Words) -> Turns:
    """A field to be followed from record to record: each call names the value that the last record gave."""
    rng = words.rng
    instruction, form = reply_form(words)
    fields = words.distinct(words.word, rng.randint(1, 5))
    followed = [rng.choice(fields) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.5:
        followed = [followed[0]] * len(followed)
    names = words.distinct(lambda: words.phrase(3), len(followed) + 1)
    path = " of ".join([*(f"{field}" for field in reversed(followed)), names[0]])
    turns: Turns = [("system", instruction)] if instruction else []
    turns += [("user", rng.choice((f"What is the {path}?", f"{path}?", f"Find the {path}.")))]
    mark, separator = rng.choice((": ", " = ", " is ", " -> ")), rng.choice(("\n", "; ", ", "))
    end = "The answer is {}"
    for name, field, value in zip(names, followed, names[1:], strict=False):
        lines = [f"{other}{mark}{value if other == field else words.phrase(3)}" for other in fields]
        head = rng.choice((f"{name}{separator}", "", f"{name}: "))
        turns += [("assistant", form(name)), ("user", head + separator.join(lines))]
    return [*turns, ("assistant", fill(end, names[-1]))]


def expression(words: Words) -> Turns:
    """An expression in a sentence, copied into a call without being computed; or built from named numbers."""
    rng = words.rng
    numbers = [words.number(rng.choice((9, 99, 999))) for _ in range(rng.randint(2, 5))]
    operator = [rng.choice("+-*/") for _ in numbers]
    instruction, form = reply_form(words)
    if rng.random() < 0.5:
        text = numbers[0] + "".join(o + n for o, n in zip(operator[1:], numbers[1:], strict=True))
        if len(numbers) > 2 and rng.random() < 0.4:
            text = f"({numbers[0]}{operator[1]}{numbers[1]}){text[len(numbers[0] + operator[1] + numbers[1]) :]}"
        spaced = rng.random() < 0.3
        shown = "".join(f" {c} " if c in "+-*/" else c for c in text) if spaced else text
        question = rng.choice((f"{shown}", f"{words.phrase(5)} {shown}", f"{shown} {words.phrase(3)}", f"{shown} = ?"))
        return ask(words, question, form(shown), instruction or "Copy the expression.")
    names = words.distinct(words.word, len(numbers))
    formula = names[0] + "".join(o + n for o, n in zip(operator[1:], names[1:], strict=True))
    answer = numbers[0] + "".join(o + n for o, n in zip(operator[1:], numbers[1:], strict=True))
    assignments = rng.choice((", ", "\n")).join(f"{n} is {v}" for n, v in zip(names, numbers, strict=True))
    return ask(words, f"{assignments}. {formula}", form(answer), f"Insert the numbers. {instruction}".strip())


def examples(words: Words) -> Turns:
    """A rule that only examples show: a form in which two elements are written, applied to a new pair."""
    rng = words.rng
    mark, joint = words.symbol(), words.symbol()
    forms = (
        "{a}{m}{b}",
        "{b} {m} {a}",
        "{m} {a}",
        "{b}{j}{m}",
        "{m}({a}, {b})",
        "{a} {a} {m}",
        "{j} {b} {m}",
        "{b}, {a}",
    )
    form = rng.choice(forms)

    def written(a: str, b: str) -> str:
        return form.replace("{m}", mark).replace("{j}", joint).replace("{a}", a).replace("{b}", b)

    between = rng.choice((" ", ", ", " : "))
    pairs = [(words.word(), words.symbol()) for _ in range(rng.randint(2, 7))]
    if rng.random() < 0.5:
        turns: Turns = []
        for a, b in pairs:
            turns += [("user", f"{a}{between}{b}"), ("assistant", written(a, b))]
        return turns
    arrow = rng.choice((" -> ", " => ", " gives ", ": "))
    shown = "\n".join(f"{a}{between}{b}{arrow}{written(a, b)}" for a, b in pairs[:-1])
    a, b = pairs[-1]
    return ask(words, f"{shown}\n{a}{between}{b}{arrow}".rstrip(), written(a, b))


def follow_goal(words: Words) -> Turns:
    """A goal of several parts, those that are done, and elements with ids: the element that the goal names next.

    The goal writes names in other letters and with other words around them; some elements get a value from it.
    """
    rng = words.rng
    labels = _labels(words, rng.randint(3, 16))
    targets = rng.sample(labels, min(len(labels), rng.choice((1, 2, 2, 3, 4))))
    chosen = {label: words.phrase(2) for label in targets if rng.random() < 0.2}
    num_done = rng.randint(0, len(targets))
    goal = _goal(words, [_mention(words, label, chosen.get(label)) for label in targets])
    mark, verb = rng.choice(("- ", "* ", "> ", "done: ")), rng.choice(("", "", words.word() + " "))
    past = [f"{mark}{verb}{label}" for label in targets[:num_done]]
    remaining = targets[num_done:]
    shown = [label for label in labels if label in remaining[:1] or rng.random() < 0.8]
    ids = _values(words, len(shown))
    style = rng.choice(("{} [{}]", "{} [{}]", "{} ({})", "{}: {}", "{} #{}", "{} = {}"))
    lines = [
        style.format(label if rng.random() < 0.8 else f"{label} = {words.value()}", value)
        for label, value in zip(shown, ids, strict=True)
    ]
    heading = [rng.choice(("# ", "", "Page: ", "== ")) + words.phrase(2)] if rng.random() < 0.8 else []
    end = rng.choice((words.word(), "done", f'{words.word()}("{words.phrase(2)}")'))
    form, call = rng.choice(("{line}", "{id}", "{call}", "{line}\n{call}", "{line}\n{call}")), words.word()
    instruction = (
        rng.choice(("Answer:", "Write", "Reply with", "Next step as"))
        + " " + form.format(line=style.format("NAME", "ID"), id="ID", call=f'{call}("ID")')
        + rng.choice(("; ", ". ", "\n")) + f"when nothing is left: {end}"
    )  # fmt: skip
    text = "\n".join([goal, *past, *heading, *lines])
    if not remaining:
        return ask(words, text, end, instruction)
    index = shown.index(remaining[0])
    value = f', "{chosen[remaining[0]]}"' if remaining[0] in chosen else ""
    answer = form.format(line=lines[index], id=ids[index], call=f'{call}("{ids[index]}"{value})')
    return ask(words, text, answer, instruction)


def _labels(words: Words, count: int) -> list[str]:
    """Names of elements, many of which share a word: `Open Hall`, `Close Hall`, `Open Oven`."""
    rng = words.rng
    first, second = [words.word() for _ in range(rng.randint(2, 4))], words.keys(rng.randint(2, 6))

    def label() -> str:
        text = f"{rng.choice(first)} {rng.choice(second)}" if rng.random() < 0.4 else words.phrase(3)
        return text[:1].upper() + text[1:]

    labels: dict[str, str] = {}  # by what remains when the letters' case is left out
    for _ in range(4 * count):
        text = label()
        labels.setdefault(text.lower(), text)
    return list(labels.values())[:count]


def _mention(words: Words, label: str, value: str | None) -> str:
    """How a goal names an element."""
    rng = words.rng
    draw = rng.random()
    text = label if draw < 0.35 else label[:1].lower() + label[1:] if draw < 0.85 else label.lower()
    if rng.random() < 0.35:
        text = f"{words.word()} {text}"
    if value is not None:
        return rng.choice((f"{text} to {value}", f"{text} as {value}", f"{text}: {value}", f"{value} for {text}"))
    return text


def _goal(words: Words, mentions: list[str]) -> str:
    rng = words.rng
    joint = rng.choice((": ", ", ", " and ", ", then ", " then ", "; "))
    last = rng.choice((joint, " and ", ", then "))
    text = joint.join(mentions[:-1]) + (last if mentions[:-1] else "") + mentions[-1] + rng.choice(("", "."))
    lead = rng.choice(("", "", "Goal: ", "Task: ", f"{words.word()} "))
    return lead + (text if lead or rng.random() < 0.3 else text[:1].upper() + text[1:])


KINDS: dict[str, tuple[float, Callable[[Words], Turns]]] = {
    "repeat": (1.5, repeat),
    "look_up": (3.0, look_up),
    "look_up_several": (0.7, look_up_several),
    "records": (0.7, records),
    "next_item": (1.5, next_item),
    "edit": (0.5, edit),
    "choose": (0.5, choose),
    "sort_numbers": (0.1, sort_numbers),
    "parts": (1.2, parts),
    "split_pairs": (1.2, split_pairs),
    "dialogue": (1.0, dialogue),
    "walk_list": (1.2, walk_list),
    "chain": (1.0, chain),
    "expression": (1.0, expression),
    "examples": (0.4, examples),
    "follow_goal": (5.0, follow_goal),
}
"""Each kind with its share of the documents."""
