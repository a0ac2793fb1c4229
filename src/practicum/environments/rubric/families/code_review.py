"""Code review: a utility module and a data pipeline module."""

from practicum.environments.rubric.families.base import Family

FAMILIES = (
    Family(
        name="utility module",
        field="code review",
        form="code",
        split="train",
        parts=("parse_row", "load_file", "clean_text", "find_key", "merge_maps", "to_date", "split_line", "retry_call"),
        measures=(),
        items=(),
        terms=("ValueError", "logging", "pathlib", "dataclass"),
        banned=("eval", "print", "global", "lambda", "exec"),
        sentences=(
            "Return the parsed value.",
            "Raise an error for a bad value.",
            "Keep the order of the input.",
            "Work on a copy of the input.",
        ),
        tasks=("read the request", "write the module", "polish the module"),
        hours=(1, 4, 1),
        rubrics={
            "maintainer": "docstrings 3; function parse_row 2; avoid eval 3; mention ValueError 1",
            "reviewer": "lines 18 3; function load_file 3; avoid global 2; complete 1",
        },
    ),
    Family(
        name="pipeline module",
        field="code review",
        form="code",
        split="train",
        parts=(
            "read_batch",
            "drop_nulls",
            "join_tables",
            "count_rows",
            "write_out",
            "hash_id",
            "check_types",
            "log_step",
        ),
        measures=(),
        items=(),
        terms=("schema", "typing", "contextlib", "assert"),
        banned=("sleep", "input", "wip", "hack", "pickle"),
        sentences=(
            "Read one batch.",
            "Return the rows that pass.",
            "Do nothing for an empty batch.",
            "Fail early where a column is missing.",
        ),
        tasks=("read the request", "write the module", "polish the module"),
        hours=(1, 6, 2),
        rubrics={
            "data engineer": "function check_types 3; docstrings 2; complete 2; mention schema 2",
            "security officer": "avoid pickle 3; function hash_id 3; avoid input 2; lines 18 1",
        },
    ),
)
