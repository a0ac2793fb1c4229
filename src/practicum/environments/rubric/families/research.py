"""Research: a literature review and a measurement table. No family of this field is for training."""

from practicum.environments.rubric.families.base import Family

FAMILIES = (
    Family(
        name="literature review",
        field="research",
        form="document",
        split="test",
        parts=("Scope", "Methods", "Findings", "Gaps", "Theory", "Evidence", "Bias", "Sources"),
        measures=("papers", "citations", "trials", "patients"),
        items=("cohort", "survey", "theory", "registry", "interview", "archive", "panel", "twin"),
        terms=("preprint", "replication", "protocol", "dataset"),
        banned=("breakthrough", "undeniable", "everyone", "miracle", "trivial"),
        sentences=(
            "Two groups report opposite effects.",
            "Most samples are small and from one country.",
            "Older work used another scale.",
            "An open question is how long the effect lasts.",
        ),
        tasks=("count the papers", "write the review", "edit the review"),
        hours=(6, 10, 3),
        rubrics={
            "supervisor": "section Methods 3; section Gaps 3; mention replication 2; avoid breakthrough 2",
            "funder": "section Findings 3; words 90 2; total trials 2; avoid miracle 1",
        },
    ),
    Family(
        name="measurement table",
        field="research",
        form="xlsx",
        split="test",
        parts=("sensor", "site", "operator", "method", "batch", "flag"),
        measures=("depth", "flow", "mass", "pressure"),
        items=("lake", "river", "well", "spring", "delta", "pond", "marsh", "canal"),
        terms=("baseline", "drift", "blank", "duplicate"),
        banned=("outlier", "typo", "wrong", "strange", "lost"),
        sentences=("Values are means of three.", "Units are in the header."),
        tasks=("add up the readings", "build the table", "check the table"),
        hours=(5, 3, 1),
        rubrics={
            "lab head": "complete 3; column operator 3; total mass 2; mention drift 1",
            "reviewer": "column method 3; sorted flow 2; rows 4 2; avoid outlier 2",
        },
    ),
)
