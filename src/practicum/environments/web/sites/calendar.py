"""The calendar: weeks and days, events to create, move, copy and delete, guests, rooms, reminders, invitations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from practicum.environments.web.sites import html as h
from practicum.environments.web.sites.calendar_data import (
    ACCEPTED,
    DAYS,
    DECLINED,
    INVITED,
    KINDS,
    OWN,
    REMINDERS,
    ROOMS,
    TIMES,
    WEEKS,
    CalendarState,
    Event,
)
from practicum.environments.web.sites.site import CHOOSE, FormError, NotFound, Site, SitePage, require_room
from practicum.environments.web.sites.variation import Variation

MAX_TITLE_CHARS = 30


class Calendar(Site):
    """A calendar over a `CalendarState`."""

    name: ClassVar[str] = "calendar"

    def __init__(self, state: CalendarState, variation: Variation) -> None:
        super().__init__(variation)
        self.state = state

    def navigation(self) -> h.Html:
        pages = (
            ("This week", "week/1"),
            ("New event", "new"),
            ("Invitations", "invitations"),
            ("Settings", "settings"),
        )
        return h.join(self.nav_link(label, path) for label, path in pages)

    # -- pages ----------------------------------------------------------------------------

    def get(self, path: Sequence[str], query: Mapping[str, str]) -> SitePage:
        match list(path):
            case []:
                return self._week(1)
            case ["week", number] if number in map(str, WEEKS):
                return self._week(int(number))
            case ["day", day] if day in DAYS:
                return self._day(day)
            case ["event", key]:
                return self._event(key)
            case ["new"]:
                return self._new()
            case [("move" | "room" | "invite" | "reminder" | "rename") as page, key]:
                return self._edit(page, key, self._find(key))
            case ["invitations"]:
                return self._invitations()
            case ["settings"]:
                return self._settings()
        raise NotFound

    def _find(self, key: str) -> Event:
        if key not in self.state.events:
            raise NotFound
        return self.state.events[key]

    def _event_links(self, keys: Sequence[str]) -> h.Html:
        if not keys:
            return h.paragraph("No events.")
        keys = self.variation.reorder("events", keys)
        return h.bullets(h.link(self.state.events[key].label, self.url(f"event/{key}")) for key in keys)

    def _week(self, number: int) -> SitePage:
        parts: list[str] = [self._event_links(self.state.in_week(number))]
        if number == 1:
            parts.append(h.join(h.link(day, self.url(f"day/{day}")) for day in DAYS))
        if number > WEEKS[0]:
            parts.append(h.link(self.word("Previous week"), self.url(f"week/{number - 1}")))
        if number < WEEKS[-1]:
            parts.append(h.link(self.word("Next week"), self.url(f"week/{number + 1}")))
        return SitePage(f"Week {number}", h.join(parts))

    def _day(self, day: str) -> SitePage:
        return SitePage(
            day, h.join((self._event_links(self.state.on_day(day)), self.post_button("Clear day", f"clear/{day}")))
        )

    def _event(self, key: str) -> SitePage:
        event = self._find(key)
        about = f"Week {event.week}, {event.day} {event.time}, room {event.room}, reminder {event.reminder}."
        parts: list[str] = [h.paragraph(about)]
        if event.response == INVITED:
            parts += [
                self.post_button("Accept", f"answer/{key}/accepted"),
                self.post_button("Decline", f"answer/{key}/declined"),
            ]
            return SitePage(event.title, h.join(parts))
        for label, page in (
            ("Move", "move"),
            ("Room", "room"),
            ("Invite", "invite"),
            ("Reminder", "reminder"),
            ("Rename", "rename"),
        ):
            parts.append(h.link(self.word(label), self.url(f"{page}/{key}")))
        if event.week < WEEKS[-1]:
            parts.append(self.post_button("Copy to next week", f"copy/{key}"))
        parts.append(self.post_button("Delete", f"delete/{key}"))
        if event.guests:
            parts.append(h.heading(self.word("Guests"), 2))
            parts.append(
                h.bullets(self.post_button("Remove", f"uninvite/{key}/{guest}", guest) for guest in event.guests)
            )
        return SitePage(event.title, h.join(parts))

    def _edit(self, page: str, key: str, event: Event) -> SitePage:
        """Return the page that changes one thing of an event."""
        if event.response == INVITED:
            raise NotFound
        fields: tuple[h.Html, ...]
        if page == "move":
            day = h.combobox(self.word("Day"), "day", self.variation.reorder("days", DAYS), event.day)
            fields = (day, h.combobox(self.word("Time"), "time", TIMES, event.time))
        elif page == "room":
            fields = (h.combobox(self.word("Room"), "room", self.variation.reorder("rooms", ROOMS), event.room),)
        elif page == "reminder":
            fields = (h.combobox(self.word("Reminder"), "reminder", REMINDERS, event.reminder),)
        elif page == "rename":
            fields = (h.textbox(self.word("Title"), "title", event.title),)
        else:
            contacts = (CHOOSE, *self.variation.reorder("contacts", self.state.contacts))
            fields = (h.combobox(self.word("Guest"), "guest", contacts),)
        label = "Send invitation" if page == "invite" else "Save"
        return SitePage(event.title, h.form(self.url(f"{page}/{key}"), *fields, h.button(self.word(label))))

    def _new(self) -> SitePage:
        fields = h.form(
            self.url("new"),
            h.combobox(self.word("Kind"), "kind", (CHOOSE, *self.variation.reorder("kinds", KINDS))),
            h.combobox(self.word("Day"), "day", (CHOOSE, *DAYS)),
            h.combobox(self.word("Time"), "time", (CHOOSE, *TIMES)),
            h.textbox(self.word("Title"), "title"),
            h.button(self.word("Create")),
        )
        return SitePage(self.word("New event"), fields)

    def _invitations(self) -> SitePage:
        keys = self.variation.reorder("invitations", self.state.invitations())
        rows = []
        for key in keys:
            event = self.state.events[key]
            accept = self.post_button("Accept", f"answer/{key}/accepted", event.title)
            decline = self.post_button("Decline", f"answer/{key}/declined", event.title)
            rows.append(h.join((f"{event.day} {event.time} ", accept, decline)))
        return SitePage(self.word("Invitations"), h.bullets(rows) if rows else h.paragraph("No invitations."))

    def _settings(self) -> SitePage:
        settings = self.state.settings
        fields = h.form(
            self.url("settings"),
            h.combobox(self.word("Day starts at"), "starts", TIMES, settings.day_starts),
            h.checkbox(self.word("Show declined"), "declined", settings.show_declined),
            h.textbox(self.word("Away message"), "away", settings.away_message),
            h.button(self.word("Save")),
        )
        return SitePage(self.word("Settings"), fields)

    # -- forms ----------------------------------------------------------------------------

    def post(self, path: Sequence[str], form: Mapping[str, str]) -> str:
        state = self.state
        match list(path):
            case ["new"]:
                return self._post_new(form)
            case [("move" | "room" | "invite" | "reminder" | "rename") as page, key]:
                return self._post_edit(page, key, self._find(key), form)
            case ["delete", key]:
                week = self._find(key).week
                del state.events[key]
                return f"week/{week}"
            case ["clear", day] if day in DAYS:
                for key in state.on_day(day):
                    del state.events[key]
                return f"day/{day}"
            case ["copy", key] if self._find(key).week < WEEKS[-1]:
                require_room(state.events, f"event/{key}")
                self._require_free(state.events[key].title, state.events[key].week + 1, key)
                state.copy_to_next_week(key)
                return f"week/{state.events[key].week + 1}"
            case ["uninvite", key, guest] if guest in self._find(key).guests:
                state.remove_guest(key, guest)
                return f"event/{key}"
            case ["answer", key, ("accepted" | "declined") as answer] if self._find(key).response == INVITED:
                self._find(key).response = ACCEPTED if answer == "accepted" else DECLINED
                return "invitations"
            case ["settings"]:
                return self._post_settings(form)
        raise NotFound

    def _require_free(self, title: str, week: int, key: str) -> None:
        """Refuse a second event of the same title in a week."""
        titles = {event.title for other, event in self.state.events.items() if event.week == week and other != key}
        if title in titles:
            raise FormError(f"There is another {title} in that week.", f"event/{key}" if key else "new")

    def _post_new(self, form: Mapping[str, str]) -> str:
        kind, day, time = form.get("kind", ""), form.get("day", ""), form.get("time", "")
        if kind not in KINDS or day not in DAYS or time not in TIMES:
            raise FormError("Choose a kind, a day and a time.", "new")
        title = form.get("title", "").strip()[:MAX_TITLE_CHARS] or kind
        require_room(self.state.events, "new")
        self._require_free(title, 1, "")
        return f"event/{self.state.create(title, day, time)}"

    def _post_edit(self, page: str, key: str, event: Event, form: Mapping[str, str]) -> str:
        if event.response not in (OWN, ACCEPTED, DECLINED):
            raise NotFound
        if page == "move":
            if form.get("day", "") not in DAYS or form.get("time", "") not in TIMES:
                raise FormError("Choose a day and a time.", f"move/{key}")
            event.day, event.time = form["day"], form["time"]
        elif page == "room":
            event.room = self._choice(form, "room", ROOMS, f"room/{key}")
        elif page == "reminder":
            event.reminder = self._choice(form, "reminder", REMINDERS, f"reminder/{key}")
        elif page == "invite":
            self.state.invite(key, self._choice(form, "guest", self.state.contacts, f"invite/{key}"))
        else:
            title = form.get("title", "").strip()[:MAX_TITLE_CHARS]
            if not title:
                raise FormError("Write a title.", f"rename/{key}")
            self._require_free(title, event.week, key)
            event.title = title
        self.message = "Saved."
        return f"event/{key}"

    def _choice(self, form: Mapping[str, str], name: str, options: Sequence[str], page: str) -> str:
        value = form.get(name, "")
        if value not in options:
            raise FormError(f"Choose: {name}.", page)
        return value

    def _post_settings(self, form: Mapping[str, str]) -> str:
        settings = self.state.settings
        settings.day_starts = self._choice(form, "starts", TIMES, "settings")
        settings.show_declined = "declined" in form
        settings.away_message = form.get("away", "").strip()
        self.message = "Saved."
        return "settings"
