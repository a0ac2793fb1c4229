"""The expert's rules for the operations of the calendar."""

from __future__ import annotations

from collections.abc import Mapping

from practicum.environments.web import tasks_calendar as ops
from practicum.environments.web.experts import ExpertPage, Field, PageAction, Rule
from practicum.environments.web.sites.calendar_data import ACCEPTED, CalendarState


def _to_event(page: ExpertPage, state: CalendarState, key: str) -> PageAction:
    """Go one step nearer to an event's page, through its week."""
    event = state.events[key]
    week = {"": 1, "week/1": 1, "week/2": 2, "week/3": 3}.get(page.path)
    if week is None:
        return page.click("link", "This week")
    if week != event.week:
        return page.click("link", "Next week" if week < event.week else "Previous week")
    return page.click("link", event.label)


def _edit(page: ExpertPage, state: CalendarState, key: str, label: str, fields: list[Field]) -> PageAction:
    """Fill the page of an event that changes one thing of it; `label` is the link to that page."""
    if page.path == f"{label.lower()}/{key}":
        return page.submit(fields, "Send invitation" if label == "Invite" else "Save")
    if page.path == f"event/{key}":
        return page.click("link", label)
    return _to_event(page, state, key)


def _delete_event(op: ops.DeleteEvent, page: ExpertPage, state: CalendarState) -> PageAction:
    if page.path == f"event/{op.event}":
        return page.click("button", "Delete")
    return _to_event(page, state, op.event)


def _clear_day(op: ops.ClearDay, page: ExpertPage, state: CalendarState) -> PageAction:
    if page.path == f"day/{op.day}":
        return page.click("button", "Clear day")
    return page.click("link", op.day if page.path in ("", "week/1") else "This week")


def _move_event(op: ops.MoveEvent, page: ExpertPage, state: CalendarState) -> PageAction:
    fields: list[Field] = [("combobox", page.word("Day"), op.day), ("combobox", page.word("Time"), op.time)]
    return _edit(page, state, op.event, "Move", fields)


def _edit_event(op: ops.EditEvent, page: ExpertPage, state: CalendarState) -> PageAction:
    if op.field == "title":
        return _edit(page, state, op.event, "Rename", [("textbox", page.word("Title"), op.value)])
    label = op.field.capitalize()
    return _edit(page, state, op.event, label, [("combobox", page.word(label), op.value)])


def _invite_guest(op: ops.InviteGuest, page: ExpertPage, state: CalendarState) -> PageAction:
    return _edit(page, state, op.key(state), "Invite", [("combobox", page.word("Guest"), op.guest)])


def _remove_guest(op: ops.RemoveGuest, page: ExpertPage, state: CalendarState) -> PageAction:
    if page.path == f"event/{op.event}":
        return page.click("button", "Remove", op.guest)
    return _to_event(page, state, op.event)


def _answer_invitation(op: ops.AnswerInvitation, page: ExpertPage, state: CalendarState) -> PageAction:
    if page.path != "invitations":
        return page.click("link", "Invitations")
    return page.click("button", "Accept" if op.response == ACCEPTED else "Decline", state.events[op.event].title)


def _create_event(op: ops.CreateEvent, page: ExpertPage, state: CalendarState) -> PageAction:
    if page.path != "new":
        return page.click("link", "New event")
    fields: list[Field] = [
        ("combobox", page.word("Kind"), op.kind),
        ("combobox", page.word("Day"), op.day),
        ("combobox", page.word("Time"), op.time),
        ("textbox", page.word("Title"), op.title),
    ]
    return page.submit(fields, "Create")


def _copy_event(op: ops.CopyEvent, page: ExpertPage, state: CalendarState) -> PageAction:
    if page.path == f"event/{op.event}":
        return page.click("button", "Copy to next week")
    return _to_event(page, state, op.event)


def _edit_settings(op: ops.EditSettings, page: ExpertPage, state: CalendarState) -> PageAction:
    if page.path != "settings":
        return page.click("link", "Settings")
    role, label = {
        "day_starts": ("combobox", "Day starts at"),
        "show_declined": ("checkbox", "Show declined"),
        "away_message": ("textbox", "Away message"),
    }[op.field]
    return page.submit([(role, page.word(label), op.value)], "Save")


def _look_at_event(op: ops.LookAtEvent, page: ExpertPage, state: CalendarState) -> PageAction:
    if page.path != f"event/{op.event}":
        return _to_event(page, state, op.event)
    return PageAction("send_msg_to_user", text=state.events[op.event].room)


RULES: Mapping[type, Rule] = {
    ops.DeleteEvent: _delete_event,
    ops.ClearDay: _clear_day,
    ops.MoveEvent: _move_event,
    ops.EditEvent: _edit_event,
    ops.InviteGuest: _invite_guest,
    ops.RemoveGuest: _remove_guest,
    ops.AnswerInvitation: _answer_invitation,
    ops.CreateEvent: _create_event,
    ops.CopyEvent: _copy_event,
    ops.EditSettings: _edit_settings,
    ops.LookAtEvent: _look_at_event,
}
