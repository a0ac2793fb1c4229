"""Writing: a press release and an event programme."""

from practicum.environments.rubric.families.base import Family

FAMILIES = (
    Family(
        name="press release",
        field="writing",
        form="document",
        split="train",
        parts=("Headline", "Quote", "Background", "Launch", "Partners", "Pricing", "Press", "Figures"),
        measures=("units", "stores", "jobs", "users"),
        items=("paris", "milan", "oslo", "porto", "vienna", "dublin", "ghent", "turin"),
        terms=("founder", "embargo", "patent", "award"),
        banned=("revolutionary", "best", "unique", "leading", "magic"),
        sentences=(
            "The product goes on sale in spring.",
            "The team has worked on it for three years.",
            "Partners from five countries take part.",
            "Pictures can be had on request.",
        ),
        tasks=("collect the figures", "write the release", "edit the release"),
        hours=(1, 3, 2),
        rubrics={
            "editor": "words 90 3; avoid revolutionary 3; section Quote 2; mention embargo 1",
            "founder": "section Launch 3; mention founder 3; total users 2; avoid best 1",
        },
    ),
    Family(
        name="event programme",
        field="writing",
        form="document",
        split="val",
        parts=("Welcome", "Talks", "Lunch", "Travel", "Hotels", "Stage", "Sponsors", "Workshops"),
        measures=("seats", "tickets", "badges", "meals"),
        items=("monday", "tuesday", "friday", "morning", "evening", "noon", "gala", "tour"),
        terms=("keynote", "shuttle", "wifi", "parking"),
        banned=("delay", "boring", "crowded", "cheap", "unclear"),
        sentences=(
            "Doors open an hour before the first talk.",
            "Food is served in the hall.",
            "Speakers meet at the side entrance.",
            "Taxis wait at the station.",
        ),
        tasks=("count the seats", "write the programme", "edit the programme"),
        hours=(1, 2, 1),
        rubrics={
            "organiser": "section Talks 3; total seats 2; mention shuttle 2; words 90 2",
            "sponsor": "section Sponsors 3; section Stage 2; avoid cheap 2; rows 4 1",
        },
    ),
)
