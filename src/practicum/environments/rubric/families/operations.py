"""Operations: a shift handover and a stock plan."""

from practicum.environments.rubric.families.base import Family

FAMILIES = (
    Family(
        name="stock plan",
        field="operations",
        form="csv",
        split="train",
        parts=("supplier", "bin", "grade", "carrier", "origin", "unit"),
        measures=("stock", "demand", "weight", "order"),
        items=("bolts", "paint", "glass", "wire", "pipe", "valve", "brick", "sand"),
        terms=("pallet", "safety", "backup", "season"),
        banned=("urgent", "approx", "old", "spare", "any"),
        sentences=("Orders follow demand.", "Stock is counted weekly."),
        tasks=("count the stock", "draft the plan", "check the plan"),
        hours=(4, 2, 1),
        rubrics={
            "planner": "total demand 3; sorted stock 2; column supplier 3; complete 1",
            "warehouse lead": "column bin 3; rows 4 3; mention pallet 1; avoid urgent 2",
        },
    ),
    Family(
        name="shift handover",
        field="operations",
        form="document",
        split="test",
        parts=("Staffing", "Incidents", "Machines", "Orders", "Safety", "Quality", "Visitors", "Cleaning"),
        measures=("output", "scrap", "downtime", "energy"),
        items=("press", "lathe", "oven", "mixer", "crane", "robot", "boiler", "conveyor"),
        terms=("lockout", "inspector", "overtime", "calibration"),
        banned=("fine", "okay", "later", "nothing", "whatever"),
        sentences=(
            "Two people were absent and one came from the pool.",
            "The guard of one machine was replaced.",
            "Deliveries were on time all night.",
            "The floor was wet near the gate.",
        ),
        tasks=("read the counters", "write the handover", "edit the handover"),
        hours=(1, 1, 0.5),
        rubrics={
            "plant manager": "section Incidents 3; total downtime 3; words 90 1; mention inspector 2",
            "next shift": "section Machines 3; section Staffing 2; avoid okay 2; rows 4 1",
        },
    ),
)
