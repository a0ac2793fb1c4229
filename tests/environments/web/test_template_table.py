"""The table of templates in docs/web.md is the one of the code.

`python -m tests.environments.web.test_template_table` writes it again.
"""

from __future__ import annotations

from pathlib import Path

from practicum.environments.web.tasks import make_tasks, templates

PAGE = Path(__file__).parents[3] / "docs" / "web.md"
START, END = "<!-- templates -->", "<!-- end of templates -->"


def table() -> str:
    rows = ["| template | level | split | text | a goal |", "|---|---|---|---|---|"]
    for name, template in templates().items():
        goal = make_tasks([template], 1)[0].fields["question"]
        rows.append(
            f"| `{name}` | {template.level} | {template.split} | {'yes' if template.needs_text else ''} | {goal} |"
        )
    return "\n".join(rows)


def test_the_page_lists_the_templates() -> None:
    text = PAGE.read_text()
    assert text[text.index(START) + len(START) : text.index(END)].strip() == table()


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index(START) + len(START)] + "\n" + table() + "\n" + page[page.index(END) :])
