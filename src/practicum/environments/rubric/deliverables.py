"""What workers write, and the aspects in which it can be right or wrong.

A `WorkSpec` is the plan of a deliverable. Its aspects are checks of the menu that the deliverable passes when the work
is well done. A worker makes three texts, one per task of the workflow: a note of figures, a draft, the deliverable; an
aspect that it gets wrong (a defect) is wrong in the text and not only in a record.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from practicum.environments.rubric.rule_kinds import CELL, RULE_KINDS, table_of, words_of
from practicum.environments.rubric.workflow import CODE, DOCUMENT, table_text
from practicum.utils.seeded_random import SeededRandom

Aspect = tuple[str, str]
"""A rule kind and its parameter."""
FILLER = "Further remarks on this point follow the usual practice and are repeated here for the record only."


def aspect_label(aspect: Aspect) -> str:
    return f"{aspect[0]} {aspect[1]}".strip()


@dataclass(frozen=True)
class WorkSpec:
    """The plan of a deliverable and the table that it is made from."""

    form: str
    title: str
    parts: tuple[str, ...]
    """Headings of a document, columns of a table, names of functions."""
    measures: tuple[str, ...]
    """Numeric columns of the input."""
    items: tuple[tuple[str, tuple[int, ...]], ...]
    """Rows of the input: a label and one number per measure."""
    terms: tuple[str, ...]
    """Words that belong into the deliverable."""
    banned: tuple[str, ...]
    """Words that do not."""
    sentences: tuple[str, ...]
    limit: int = 0
    """Words of a document or lines of a program, at most."""

    @property
    def input_table(self) -> str:
        return table_text(("item", *self.measures), [(label, *values) for label, values in self.items])

    def total(self, measure: str) -> int:
        index = self.measures.index(measure)
        return sum(values[index] for _, values in self.items)

    @property
    def aspects(self) -> tuple[Aspect, ...]:
        """Everything that can be right or wrong in this deliverable."""
        kind = {DOCUMENT: "section", CODE: "function"}.get(self.form, "column")
        aspects: list[Aspect] = [(kind, part) for part in self.parts]
        if self.form == CODE:
            aspects += [("docstrings", ""), ("lines", str(self.limit))]
        else:
            aspects += [("total", measure) for measure in self.measures]
            aspects.append(("rows", str(len(self.items))))
        if self.form == DOCUMENT:
            aspects.append(("words", str(self.limit)))
        elif self.form != CODE:
            aspects.append(("sorted", self.measures[0]))
        aspects.append(("complete", ""))
        aspects += [("mention", term) for term in self.terms] + [("avoid", word) for word in self.banned]
        return tuple(aspects)


def aspects_of_task(spec: WorkSpec, number: int) -> tuple[Aspect, ...]:
    """Return the aspects that the first (figures), second (draft) or third task (the deliverable) decides."""
    if number == 0:
        return tuple(aspect for aspect in spec.aspects if aspect[0] == "total")
    structure = tuple(
        aspect
        for aspect in spec.aspects
        if aspect[0] != "total" and RULE_KINDS[aspect[0]].topic in ("structure", "figures") and aspect[0] != "complete"
    )
    if number == 1:
        return structure
    return tuple(a for a in spec.aspects if a not in structure and a[0] != "total")


def figures_note(spec: WorkSpec, defects: Set[Aspect], random: SeededRandom) -> str:
    """Return a table of totals; a defective one is wrong by a plausible amount."""
    rows = []
    for measure in spec.measures if spec.form != CODE else ():
        total = spec.total(measure)
        rows.append((measure, total + random.between(3, 40) if ("total", measure) in defects else total))
    return table_text(("figure", "value"), rows)


def draft(spec: WorkSpec, note: str, defects: Set[Aspect], random: SeededRandom) -> str:
    """Return the draft of a deliverable, made from the note of figures."""
    totals = {row[0]: row[1] for row in table_of(note)[1]}
    if spec.form == DOCUMENT:
        return _draft_document(spec, totals, defects, random)
    if spec.form == CODE:
        return _draft_code(spec, defects, random)
    return _draft_table(spec, totals, defects, random)


def _items(spec: WorkSpec, defects: Set[Aspect], random: SeededRandom) -> list[tuple[str, tuple[int, ...]]]:
    items = list(spec.items)
    if ("rows", str(len(spec.items))) in defects:
        items = random.sample(items, random.between(1, len(items) // 2))
    return items


def _draft_document(spec: WorkSpec, totals: dict[str, str], defects: Set[Aspect], random: SeededRandom) -> str:
    lines = [spec.title]
    for index, heading in enumerate(spec.parts):
        if ("section", heading) in defects:
            if random.below(3) == 0:
                lines.append(f"# {heading}")
            continue
        lines += [f"# {heading}", spec.sentences[index % len(spec.sentences)]]
    lines.append("Figures")
    lines += [f"- {label}: {values[0]}" for label, values in _items(spec, defects, random)]
    lines += [f"Total {measure} {total}." for measure, total in totals.items()]
    return "\n".join(lines)


def _draft_table(spec: WorkSpec, totals: dict[str, str], defects: Set[Aspect], random: SeededRandom) -> str:
    columns = ["item", *(part for part in spec.parts if ("column", part) not in defects)]
    items = sorted(_items(spec, defects, random), key=lambda item: -item[1][0])
    if any(kind == "sorted" for kind, _ in defects):
        items = items[::-1] if random.below(2) else items[len(items) // 2 :] + items[: len(items) // 2]
    rows: list[tuple[object, ...]] = []
    for label, values in items:
        measured = dict(zip(spec.measures, values, strict=True))
        rows.append((label, *(measured.get(column, f"{column[:3]}{label[:2]}") for column in columns[1:])))
    sums = " ".join(f"{measure} {total}" for measure, total in totals.items())
    return f"{table_text(columns, rows)}\nTotals: {sums}"


def _draft_code(spec: WorkSpec, defects: Set[Aspect], random: SeededRandom) -> str:
    lines = [f"# {spec.title}", ""]
    for index, name in enumerate(spec.parts):
        if ("function", name) in defects and random.below(2):
            continue
        lines.append(f"def {name}(value):")
        if ("docstrings", "") not in defects or index == 0:
            lines.append(f'    """{spec.sentences[index % len(spec.sentences)]}"""')
        lines += ["    pass" if ("function", name) in defects else f"    return (value, {index + 1})", ""]
    return "\n".join(lines)


def finish(spec: WorkSpec, text: str, defects: Set[Aspect], random: SeededRandom) -> str:
    """Return the deliverable: the draft with its words checked, its gaps closed and its length kept, or not."""
    comment = "# " if spec.form == CODE else ""
    lines = text.splitlines()
    lines += [f"{comment}Checked with {term}." for term in spec.terms if ("mention", term) not in defects]
    lines += [f"{comment}This is {word} so." for word in spec.banned if ("avoid", word) in defects]
    if ("complete", "") in defects:
        lines = _with_gaps(lines, comment, random)
    length = next((aspect for aspect in defects if aspect[0] in ("words", "lines")), None)
    if length is not None:
        share = 1.15 + random.below(5) / 10
        if length[0] == "words":
            while len(words_of("\n".join(lines))) < share * spec.limit:
                lines.append(FILLER)
        else:
            while sum(bool(line.strip()) for line in lines) < share * spec.limit:
                lines.append(f"{comment}{FILLER}")
    return "\n".join(lines)


def _with_gaps(lines: list[str], comment: str, random: SeededRandom) -> list[str]:
    tables = [index for index, line in enumerate(lines) if CELL in line][1:]
    if tables:
        index = random.choice(tables)
        cells = lines[index].split(CELL)
        lines[index] = CELL.join([*cells[:-1], ""])
    return [*lines, *[f"{comment}TODO"] * random.between(1, 3)]


def with_limit(spec: WorkSpec, slack: int) -> int:
    """Return a limit of words or lines that the whole deliverable keeps, a multiple of ten (two for lines)."""
    random = SeededRandom("limit")
    text = finish(spec, draft(spec, figures_note(spec, set(), random), set(), random), set(), random)
    if spec.form == CODE:
        return (sum(bool(line.strip()) for line in text.splitlines()) + 1) // 2 * 2 + 2 * slack
    return (len(words_of(text)) + 9) // 10 * 10 + 10 * slack
