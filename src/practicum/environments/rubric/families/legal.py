"""Legal: a contract summary and a claims register."""

from practicum.environments.rubric.families.base import Family

FAMILIES = (
    Family(
        name="contract summary",
        field="legal",
        form="document",
        split="train",
        parts=("Parties", "Term", "Payment", "Liability", "Exit", "Disputes", "Notices", "Privacy"),
        measures=("fee", "penalty", "deposit", "cap"),
        items=("licence", "support", "setup", "training", "hosting", "review", "audit", "transfer"),
        terms=("indemnity", "warranty", "consent", "escrow"),
        banned=("obviously", "basically", "always", "never", "fair"),
        sentences=(
            "Either side may end the contract with notice.",
            "The supplier answers for direct loss only.",
            "Invoices are due within a month.",
            "The law of the seat applies.",
        ),
        tasks=("list the amounts", "summarise the clauses", "edit the summary"),
        hours=(2, 6, 2),
        rubrics={
            "general counsel": "section Liability 3; section Exit 3; mention indemnity 2; avoid fair 1",
            "buyer": "total fee 3; section Payment 2; words 90 2; avoid obviously 1",
        },
    ),
    Family(
        name="claims register",
        field="legal",
        form="csv",
        split="test",
        parts=("claimant", "court", "stage", "counsel", "filed", "remedy"),
        measures=("damages", "costs", "provision", "interest"),
        items=("injury", "delay", "defect", "patent", "lease", "freight", "insult", "breach"),
        terms=("limitation", "hearing", "settlement", "appeal"),
        banned=("guilty", "hopeless", "winner", "certain", "frivolous"),
        sentences=("The claim is open.", "A hearing is set."),
        tasks=("add up the claims", "draft the register", "check the register"),
        hours=(2, 3, 2),
        rubrics={
            "general counsel": "column counsel 3; total damages 3; complete 2; avoid guilty 2",
            "insurer": "sorted damages 3; rows 4 2; column court 2; mention settlement 1",
        },
    ),
)
