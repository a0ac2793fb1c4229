"""Finance: a budget report and a cost allocation table."""

from practicum.environments.rubric.families.base import Family

FAMILIES = (
    Family(
        name="budget report",
        field="finance",
        form="document",
        split="train",
        parts=("Summary", "Drivers", "Risks", "Outlook", "Actions", "Variance", "Cash", "Assumptions"),
        measures=("revenue", "cost", "margin", "tax"),
        items=("north", "south", "east", "west", "online", "export", "retail", "service"),
        terms=("auditor", "forecast", "covenant", "reserve"),
        banned=("roughly", "maybe", "hopefully", "somehow", "soon"),
        sentences=(
            "Sales grew faster than planned in two units.",
            "The main change came from prices and not from volume.",
            "A late payment by one customer remains open.",
            "The next quarter is expected to be stable.",
        ),
        tasks=("add up the ledger", "draft the report", "edit the report"),
        hours=(3, 5, 2),
        rubrics={
            "controller": "total revenue 3; total cost 3; section Variance 2; avoid roughly 1",
            "board member": "section Summary 3; words 90 3; mention auditor 2; section Outlook 1",
        },
    ),
    Family(
        name="cost allocation",
        field="finance",
        form="xlsx",
        split="train",
        parts=("unit", "owner", "driver", "account", "period", "basis"),
        measures=("hours", "spend", "budget", "headcount"),
        items=("sales", "plant", "office", "fleet", "lab", "shop", "depot", "kitchen"),
        terms=("ledger", "overhead", "accrual", "cutoff"),
        banned=("estimate", "guess", "misc", "various", "other"),
        sentences=("Shares follow the driver.", "Each unit carries its own cost."),
        tasks=("add up the accounts", "lay out the table", "check the table"),
        hours=(2, 4, 1),
        rubrics={
            "controller": "total spend 3; complete 3; column account 2; sorted spend 1",
            "unit head": "column driver 3; rows 4 2; mention overhead 2; avoid misc 2",
        },
    ),
)
