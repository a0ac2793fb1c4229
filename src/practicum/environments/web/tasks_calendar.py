"""Operations and task templates of the calendar."""

from __future__ import annotations

import random
from dataclasses import dataclass

from practicum.environments.web.sites.calendar_data import (
    ACCEPTED,
    DAYS,
    DECLINED,
    KINDS,
    REMINDERS,
    ROOMS,
    TIMES,
    CalendarState,
    Event,
)
from practicum.environments.web.tasks import Reading, TaskInstance, TaskTemplate

NEW_TITLES = ("Picnic", "Concert", "Museum", "Garage", "Library", "Bakery", "Theatre", "Haircut")
AWAY_MESSAGES = ("Back on Monday", "On holiday", "At a fair", "In training", "Out today")


@dataclass(frozen=True)
class DeleteEvent:
    """Delete an event."""

    event: str

    def apply(self, state: CalendarState) -> None:
        del state.events[self.event]


@dataclass(frozen=True)
class ClearDay:
    """Delete the events on a day of the current week."""

    day: str

    def apply(self, state: CalendarState) -> None:
        for key in state.on_day(self.day):
            del state.events[key]


@dataclass(frozen=True)
class MoveEvent:
    """Move an event within its week."""

    event: str
    day: str
    time: str

    def apply(self, state: CalendarState) -> None:
        state.events[self.event].day, state.events[self.event].time = self.day, self.time


@dataclass(frozen=True)
class EditEvent:
    """Change one field of an event: room, reminder or title."""

    event: str
    field: str
    value: str

    def apply(self, state: CalendarState) -> None:
        setattr(state.events[self.event], self.field, self.value)


@dataclass(frozen=True)
class InviteGuest:
    """Invite a guest to an event. An event that is yet to be created is named by its title."""

    event: str
    guest: str

    def key(self, state: CalendarState) -> str:
        """Return the event's id."""
        if self.event in state.events:
            return self.event
        return next(key for key in reversed(state.events) if state.events[key].title == self.event)

    def apply(self, state: CalendarState) -> None:
        state.invite(self.key(state), self.guest)


@dataclass(frozen=True)
class RemoveGuest:
    """Remove a guest of an event."""

    event: str
    guest: str

    def apply(self, state: CalendarState) -> None:
        state.remove_guest(self.event, self.guest)


@dataclass(frozen=True)
class AnswerInvitation:
    """Accept or decline an invitation."""

    event: str
    response: str

    def apply(self, state: CalendarState) -> None:
        state.events[self.event].response = self.response


@dataclass(frozen=True)
class CreateEvent:
    """Create an event in the current week; without a title it has the name of its kind."""

    kind: str
    day: str
    time: str
    title: str = ""

    def apply(self, state: CalendarState) -> None:
        state.create(self.title or self.kind, self.day, self.time)


@dataclass(frozen=True)
class CopyEvent:
    """Copy an event to the next week."""

    event: str

    def apply(self, state: CalendarState) -> None:
        state.copy_to_next_week(self.event)


@dataclass(frozen=True)
class EditSettings:
    """Change one of the settings: day_starts, show_declined or away_message."""

    field: str
    value: str | bool

    def apply(self, state: CalendarState) -> None:
        setattr(state.settings, self.field, self.value)


@dataclass(frozen=True)
class LookAtEvent(Reading):
    """Open an event's page, to read it."""

    event: str

    @property
    def path(self) -> str:
        return f"event/{self.event}"


# -- what to draw -------------------------------------------------------------------------


def own_event(rng: random.Random, state: CalendarState, week: int = 1) -> tuple[str, Event]:
    """Return an event of the user's own."""
    key = rng.choice(state.in_week(week))
    return key, state.events[key]


def two_events(rng: random.Random, state: CalendarState) -> list[tuple[str, Event]]:
    """Return two events of this week."""
    return [(key, state.events[key]) for key in rng.sample(state.in_week(1), 2)]


def free_slot(rng: random.Random, state: CalendarState) -> tuple[str, str]:
    """Return a day and a time of this week at which there is nothing."""
    used = {(event.day, event.time) for event in state.events.values() if event.week == 1}
    return rng.choice([(day, time) for day in DAYS for time in TIMES if (day, time) not in used])


def other_guest(rng: random.Random, state: CalendarState, event: Event) -> str:
    """Return a contact who is no guest of an event."""
    return rng.choice([name for name in state.contacts if name not in event.guests])


def event_with_guests(rng: random.Random, state: CalendarState, count: int) -> tuple[str, Event]:
    """Return an event of this week that has so many guests; they are changed for it."""
    key, event = own_event(rng, state)
    event.guests = sorted(rng.sample(state.contacts, count))
    return key, event


# -- level 1 ------------------------------------------------------------------------------


def _delete(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    return TaskInstance(f"Delete the event {event.label}.", (DeleteEvent(key),))


def _accept(rng: random.Random, state: CalendarState) -> TaskInstance:
    key = rng.choice(state.invitations())
    return TaskInstance(f"Invitations: accept {state.events[key].title}.", (AnswerInvitation(key, ACCEPTED),))


def _guest_remove(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = event_with_guests(rng, state, 2)
    guest = rng.choice(event.guests)
    return TaskInstance(f"Remove {guest} from the event {event.label}.", (RemoveGuest(key, guest),))


def _decline(rng: random.Random, state: CalendarState) -> TaskInstance:
    key = rng.choice(state.invitations())
    return TaskInstance(f"Invitations: decline {state.events[key].title}.", (AnswerInvitation(key, DECLINED),))


def _copy(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    return TaskInstance(f"Copy to next week the event {event.label}.", (CopyEvent(key),))


def _clear_day(rng: random.Random, state: CalendarState) -> TaskInstance:
    day = own_event(rng, state)[1].day
    return TaskInstance(f"Clear day: {day}.", (ClearDay(day),))


# -- level 2 ------------------------------------------------------------------------------


def _move(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    day, time = free_slot(rng, state)
    return TaskInstance(f"Move the event {event.label}. Day: {day}. Time: {time}.", (MoveEvent(key, day, time),))


def _invite(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    guest = other_guest(rng, state, event)
    return TaskInstance(f"Invite to the event {event.label}. Guest: {guest}.", (InviteGuest(key, guest),))


def _room(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    room = rng.choice([name for name in ROOMS if name != event.room])
    return TaskInstance(f"Room of the event {event.label}. Room: {room}.", (EditEvent(key, "room", room),))


def _create(rng: random.Random, state: CalendarState) -> TaskInstance:
    kind, (day, time) = rng.choice(KINDS), free_slot(rng, state)
    return TaskInstance(f"New event. Kind: {kind}. Day: {day}. Time: {time}.", (CreateEvent(kind, day, time),))


def _next_week(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state, 2)
    return TaskInstance(f"Next week: delete the event {event.label}.", (DeleteEvent(key),))


def _reminder(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    value = rng.choice(REMINDERS[1:])
    return TaskInstance(
        f"Reminder of the event {event.label}. Reminder: {value}.", (EditEvent(key, "reminder", value),)
    )


def _day_starts(rng: random.Random, state: CalendarState) -> TaskInstance:
    value = rng.choice([time for time in TIMES[:4] if time != state.settings.day_starts])
    return TaskInstance(f"Settings: day starts at: {value}.", (EditSettings("day_starts", value),))


def _show_declined(rng: random.Random, state: CalendarState) -> TaskInstance:
    value = not state.settings.show_declined
    words = "tick" if value else "untick"
    return TaskInstance(f"Settings: {words} Show declined and save.", (EditSettings("show_declined", value),))


def _rename(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    title = rng.choice(NEW_TITLES)
    return TaskInstance(f"Rename the event {event.label}. Title: {title}.", (EditEvent(key, "title", title),))


def _create_title(rng: random.Random, state: CalendarState) -> TaskInstance:
    kind, title, (day, time) = rng.choice(KINDS), rng.choice(NEW_TITLES), free_slot(rng, state)
    goal = f"New event. Kind: {kind}. Day: {day}. Time: {time}. Title: {title}."
    return TaskInstance(goal, (CreateEvent(kind, day, time, title),))


def _which_room(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    others = tuple(room for room in ROOMS if room != event.room)
    return TaskInstance(
        f"In which room is the event {event.label}?", (LookAtEvent(key),), answer=event.room, distractors=others
    )


def _away(rng: random.Random, state: CalendarState) -> TaskInstance:
    text = rng.choice(AWAY_MESSAGES)
    return TaskInstance(f"Settings: away message: {text}.", (EditSettings("away_message", text),))


# -- level 3 ------------------------------------------------------------------------------


def _move_invite(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    (day, time), guest = free_slot(rng, state), other_guest(rng, state, event)
    goal = f"Move the event {event.label}. Day: {day}. Time: {time}. Then invite. Guest: {guest}."
    return TaskInstance(goal, (MoveEvent(key, day, time), InviteGuest(key, guest)))


def _create_invite(rng: random.Random, state: CalendarState) -> TaskInstance:
    kind, (day, time), guest = rng.choice(KINDS), free_slot(rng, state), rng.choice(state.contacts)
    goal = f"New event. Kind: {kind}. Day: {day}. Time: {time}. Then invite. Guest: {guest}."
    return TaskInstance(goal, (CreateEvent(kind, day, time), InviteGuest(kind, guest)))


def _delete_two(rng: random.Random, state: CalendarState) -> TaskInstance:
    chosen = two_events(rng, state)
    goal = f"Delete the events {chosen[0][1].label} and {chosen[1][1].label}."
    return TaskInstance(goal, tuple(DeleteEvent(key) for key, _ in chosen))


def _swap(rng: random.Random, state: CalendarState) -> TaskInstance:
    (first, a), (second, b) = two_events(rng, state)
    goal = f"Swap day and time of the events {a.label} and {b.label}."
    return TaskInstance(goal, (MoveEvent(first, b.day, b.time), MoveEvent(second, a.day, a.time)))


def _same_guests(rng: random.Random, state: CalendarState) -> TaskInstance:
    (first, source), (second, target) = two_events(rng, state)
    source.guests = sorted(rng.sample(state.contacts, 2))
    target.guests = []
    goal = f"Invite the guests of the event {source.label} to the event {target.label}, too."
    return TaskInstance(goal, (LookAtEvent(first), *(InviteGuest(second, guest) for guest in source.guests)))


def _room_reminder(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state, 2)
    room, reminder = rng.choice([name for name in ROOMS if name != event.room]), rng.choice(REMINDERS[1:])
    goal = f"Next week: room of the event {event.label}. Room: {room}. Then reminder. Reminder: {reminder}."
    return TaskInstance(goal, (EditEvent(key, "room", room), EditEvent(key, "reminder", reminder)))


def _answer_all(rng: random.Random, state: CalendarState) -> TaskInstance:
    keys = state.invitations()[:2]
    accepted, declined = rng.sample(keys, 2)
    a, b = state.events[accepted], state.events[declined]
    key, event = own_event(rng, state)
    goal = f"Invitations: accept {a.title}, decline {b.title}. Then delete the event {event.label}."
    operations = (AnswerInvitation(accepted, ACCEPTED), AnswerInvitation(declined, DECLINED), DeleteEvent(key))
    return TaskInstance(goal, operations)


def _create_full(rng: random.Random, state: CalendarState) -> TaskInstance:
    kind, title, (day, time) = rng.choice(KINDS), rng.choice(NEW_TITLES), free_slot(rng, state)
    guest = rng.choice(state.contacts)
    goal = f"New event. Kind: {kind}. Day: {day}. Time: {time}. Title: {title}. Then invite. Guest: {guest}."
    return TaskInstance(goal, (CreateEvent(kind, day, time, title), InviteGuest(title, guest)))


def _rename_move(rng: random.Random, state: CalendarState) -> TaskInstance:
    key, event = own_event(rng, state)
    title, (day, time) = rng.choice(NEW_TITLES), free_slot(rng, state)
    goal = f"Rename the event {event.label}. Title: {title}. Then move it. Day: {day}. Time: {time}."
    return TaskInstance(goal, (EditEvent(key, "title", title), MoveEvent(key, day, time)))


TEMPLATES = (
    TaskTemplate("calendar/delete", 1, "train", _delete),
    TaskTemplate("calendar/accept", 1, "train", _accept),
    TaskTemplate("calendar/guest-remove", 1, "train", _guest_remove),
    TaskTemplate("calendar/decline", 1, "val", _decline),
    TaskTemplate("calendar/copy", 1, "test", _copy),
    TaskTemplate("calendar/clear-day", 1, "test", _clear_day),
    TaskTemplate("calendar/move", 2, "train", _move),
    TaskTemplate("calendar/invite", 2, "train", _invite),
    TaskTemplate("calendar/room", 2, "train", _room),
    TaskTemplate("calendar/create", 2, "train", _create),
    TaskTemplate("calendar/next-week", 2, "train", _next_week),
    TaskTemplate("calendar/rename", 2, "train", _rename, needs_text=True),
    TaskTemplate("calendar/create-title", 2, "train", _create_title, needs_text=True),
    TaskTemplate("calendar/reminder", 2, "test", _reminder),
    TaskTemplate("calendar/show-declined", 2, "val", _show_declined),
    TaskTemplate("calendar/which-room", 2, "val", _which_room, needs_text=True),
    TaskTemplate("calendar/day-starts", 2, "test", _day_starts),
    TaskTemplate("calendar/away", 2, "test", _away, needs_text=True),
    TaskTemplate("calendar/move-invite", 3, "train", _move_invite),
    TaskTemplate("calendar/create-invite", 3, "train", _create_invite),
    TaskTemplate("calendar/delete-two", 3, "train", _delete_two),
    TaskTemplate("calendar/create-full", 3, "train", _create_full, needs_text=True),
    TaskTemplate("calendar/swap", 3, "val", _swap),
    TaskTemplate("calendar/same-guests", 3, "test", _same_guests),
    TaskTemplate("calendar/room-reminder", 3, "test", _room_reminder),
    TaskTemplate("calendar/answer-all", 3, "test", _answer_all),
    TaskTemplate("calendar/rename-move", 3, "test", _rename_move, needs_text=True),
)
