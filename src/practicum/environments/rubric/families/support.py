"""Support: a reply to a customer and a ticket report."""

from practicum.environments.rubric.families.base import Family

FAMILIES = (
    Family(
        name="customer reply",
        field="support",
        form="document",
        split="train",
        parts=("Greeting", "Cause", "Steps", "Refund", "Contact", "Apology", "Timeline", "Thanks"),
        measures=("price", "credit", "shipping", "discount"),
        items=("lamp", "desk", "chair", "shelf", "cable", "mirror", "carpet", "clock"),
        terms=("tracking", "voucher", "manual", "return"),
        banned=("unfortunately", "policy", "impossible", "fault", "complain"),
        sentences=(
            "Your parcel left our store on Monday.",
            "Please unplug the device and wait a minute.",
            "The amount is on its way to your account.",
            "We are glad to help at any hour.",
        ),
        tasks=("look up the order", "draft the reply", "edit the reply"),
        hours=(0.5, 1, 0.5),
        rubrics={
            "team lead": "section Steps 3; avoid unfortunately 3; words 80 2; mention tracking 1",
            "customer": "section Refund 3; total credit 3; section Apology 2; avoid policy 2",
        },
    ),
    Family(
        name="ticket report",
        field="support",
        form="xlsx",
        split="val",
        parts=("queue", "agent", "product", "status", "reason", "language"),
        measures=("opened", "closed", "minutes", "escalated"),
        items=("login", "billing", "delivery", "crash", "update", "printing", "export", "search"),
        terms=("backlog", "target", "weekend", "release"),
        banned=("spam", "angry", "unknown", "junk", "noise"),
        sentences=("Tickets count once.", "Merged tickets are left out."),
        tasks=("count the tickets", "build the report", "check the report"),
        hours=(1, 2, 1),
        rubrics={
            "support manager": "total minutes 3; total closed 2; sorted minutes 2; column reason 2",
            "product manager": "column product 3; rows 4 2; mention release 2; avoid unknown 1",
        },
    ),
)
