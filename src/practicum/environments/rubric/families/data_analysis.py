"""Data analysis: an experiment report and a cohort table."""

from practicum.environments.rubric.families.base import Family

FAMILIES = (
    Family(
        name="experiment report",
        field="data analysis",
        form="document",
        split="train",
        parts=("Question", "Design", "Result", "Limits", "Decision", "Sample", "Metric", "Checks"),
        measures=("visits", "orders", "clicks", "refunds"),
        items=("control", "blue", "green", "large", "small", "short", "long", "plain"),
        terms=("interval", "baseline", "holdout", "power"),
        banned=("proves", "huge", "significant", "clearly", "winner"),
        sentences=(
            "Visitors were assigned at random for two weeks.",
            "The difference is larger than its interval.",
            "Weekends behave otherwise and were kept apart.",
            "The change will be shipped to all visitors.",
        ),
        tasks=("add up the arms", "write the report", "edit the report"),
        hours=(4, 4, 1),
        rubrics={
            "statistician": "mention interval 3; section Limits 3; avoid proves 2; total visits 2",
            "product owner": "section Decision 3; words 90 2; total orders 2; section Result 1",
        },
    ),
    Family(
        name="cohort table",
        field="data analysis",
        form="csv",
        split="train",
        parts=("month", "channel", "country", "plan", "device", "segment"),
        measures=("signups", "active", "churned", "paid"),
        items=("january", "february", "march", "april", "may", "june", "july", "august"),
        terms=("retention", "timezone", "snapshot", "dedup"),
        banned=("approx", "dummy", "sample", "old", "temp"),
        sentences=("Counts are by signup month.", "Test accounts are left out."),
        tasks=("count the events", "build the table", "check the table"),
        hours=(3, 3, 1),
        rubrics={
            "analyst": "complete 3; column segment 2; total signups 3; mention snapshot 1",
            "growth lead": "sorted active 3; column channel 3; rows 4 2; avoid dummy 1",
        },
    ),
)
