"""Seeded data of the calendar: events of two weeks, invitations, guests and settings."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from practicum.environments.web.sites.mail_data import NUM_CONTACTS, PEOPLE
from practicum.environments.web.sites.state import SiteState

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri")
TIMES = ("9:00", "10:00", "11:00", "13:00", "14:00", "15:00", "16:00")
WEEKS = (1, 2, 3)
"""The numbers of the weeks; the first is the current one."""
ROOMS = ("Oak", "Pine", "Elm", "Cedar")
REMINDERS = ("Off", "10 min", "1 hour", "1 day")
KINDS = ("Meeting", "Call", "Lunch", "Focus", "Training")
TITLES = (
    *("Standup", "Review", "Planning", "Budget", "Design", "Workshop", "Interview", "Demo", "Retro", "Sync", "Yoga"),
    *("Dentist", "Coaching", "Kickoff", "Briefing", "Choir", "Tennis", "Seminar", "Rehearsal", "Tutorial"),
)
INVITED, ACCEPTED, DECLINED, OWN = "invited", "accepted", "declined", "own"


@dataclass
class Event:
    """An event; `response` says whether it is the user's own, or how the user answered the invitation."""

    title: str
    week: int
    day: str
    time: str
    room: str
    guests: list[str]
    reminder: str = "Off"
    response: str = OWN

    @property
    def label(self) -> str:
        """The text of a link to the event."""
        return f"{self.day} {self.time} {self.title}"

    @property
    def slot(self) -> tuple[int, str, str]:
        """Week, day and time."""
        return self.week, self.day, self.time


@dataclass
class CalendarSettings:
    """The user's settings."""

    day_starts: str = "9:00"
    show_declined: bool = False
    away_message: str = ""


@dataclass
class CalendarState(SiteState):
    """The state of a calendar."""

    STATIC: ClassVar[frozenset[str]] = frozenset({"contacts", "counter"})

    contacts: tuple[str, ...]
    events: dict[str, Event] = field(default_factory=dict)
    settings: CalendarSettings = field(default_factory=CalendarSettings)
    counter: int = 0

    def add(self, event: Event) -> str:
        """Add an event and return its id. Ids are never used twice."""
        self.counter += 1
        self.events[f"e{self.counter}"] = event
        return f"e{self.counter}"

    def create(self, title: str, day: str, time: str, week: int = 1, room: str = ROOMS[0]) -> str:
        """Create an event of the user's own."""
        return self.add(Event(title, week, day, time, room, []))

    def in_week(self, week: int) -> list[str]:
        """Return the ids of a week's events by day and time, without those that wait for an answer or were declined."""
        keys = [key for key, event in self.events.items() if event.week == week and event.response in (OWN, ACCEPTED)]
        return sorted(keys, key=lambda key: (DAYS.index(self.events[key].day), TIMES.index(self.events[key].time)))

    def on_day(self, day: str) -> list[str]:
        """Return the ids of the events on a day of the current week."""
        return [key for key in self.in_week(1) if self.events[key].day == day]

    def invitations(self) -> list[str]:
        """Return the ids of the events that wait for an answer."""
        return [key for key, event in self.events.items() if event.response == INVITED]

    def invite(self, key: str, guest: str) -> None:
        """Invite a guest to an event, once. Guests are in alphabetical order."""
        event = self.events[key]
        event.guests = sorted({*event.guests, guest})

    def remove_guest(self, key: str, guest: str) -> None:
        """Remove a guest of an event."""
        event = self.events[key]
        event.guests = [name for name in event.guests if name != guest]

    def copy_to_next_week(self, key: str) -> None:
        """Make a copy of an event one week later."""
        event = self.events[key]
        self.add(
            Event(event.title, event.week + 1, event.day, event.time, event.room, list(event.guests), event.reminder)
        )


def make_calendar(rng: random.Random) -> CalendarState:
    """Return a calendar with six or seven events in this week, three in the next, and two or three invitations."""
    state = CalendarState(tuple(rng.sample(PEOPLE, NUM_CONTACTS)))
    titles = iter(rng.sample(TITLES, 14))
    slots = [(day, time) for day in DAYS for time in TIMES]
    for week, count, response in ((1, rng.randint(6, 7), OWN), (2, 3, OWN), (1, rng.randint(2, 3), INVITED)):
        used = {event.slot[1:] for event in state.events.values() if event.week == week}
        for day, time in rng.sample([slot for slot in slots if slot not in used], count):
            guests = sorted(rng.sample(state.contacts, rng.randint(0, 2)))
            state.add(Event(next(titles), week, day, time, rng.choice(ROOMS), guests, response=response))
    state.settings = CalendarSettings(rng.choice(TIMES[:3]), rng.random() < 0.5, "")
    return state
