"""The expert's rules for the operations of the mail client."""

from __future__ import annotations

from collections.abc import Mapping

from practicum.environments.web import tasks_mail as ops
from practicum.environments.web.experts import ExpertPage, Field, PageAction, Rule
from practicum.environments.web.sites.mail import FOLDER_LABELS, NOBODY
from practicum.environments.web.sites.mail_data import QUICK_REPLIES, MailState


def _to_message(page: ExpertPage, state: MailState, key: str, folder: str = "") -> PageAction:
    """Go one step nearer to a message's page, through its folder or the one that is given."""
    message = state.messages[key]
    folder = folder or message.folder
    in_folder = page.path == f"folder/{folder}" or (page.path == "" and folder == "Inbox")
    if in_folder and page.has("link", message.label):
        return page.click("link", message.label)
    return page.click("link", "Next" if in_folder and page.has("link", "Next") else FOLDER_LABELS.get(folder, folder))


def _move_message(op: ops.MoveMessage, page: ExpertPage, state: MailState) -> PageAction:
    if page.path != f"message/{op.message}":
        return _to_message(page, state, op.message)
    if op.folder in state.own_folders:
        return page.submit([("combobox", page.word("Folder"), op.folder)], "Move")
    return page.click("button", {"Trash": "Delete", "Archive": "Archive", "Inbox": "Restore"}[op.folder])


def _star_message(op: ops.StarMessage, page: ExpertPage, state: MailState) -> PageAction:
    if page.path == f"message/{op.message}":
        return page.click("button", "Star" if op.starred else "Unstar")
    label = state.messages[op.message].label
    if op.search and page.path == "search" and page.has("link", label):
        return page.click("link", label)
    if op.search:
        return page.submit([("searchbox", page.word("Search"), op.search)], "Search")
    return _to_message(page, state, op.message, "" if op.starred else "Starred")


def _mark_unread(op: ops.MarkUnread, page: ExpertPage, state: MailState) -> PageAction:
    if page.path != f"message/{op.message}":
        return _to_message(page, state, op.message)
    return page.click("button", "Mark as unread")


def _mark_all_read(op: ops.MarkAllRead, page: ExpertPage, state: MailState) -> PageAction:
    if page.path not in ("", "folder/Inbox"):
        return page.click("link", "Inbox")
    return page.click("button", "Mark all as read")


def _empty_trash(op: ops.EmptyTrash, page: ExpertPage, state: MailState) -> PageAction:
    return page.click("button", "Empty trash") if page.path == "folder/Trash" else page.click("link", "Trash")


def _send_reply(op: ops.SendReply, page: ExpertPage, state: MailState) -> PageAction:
    if page.path == f"reply/{op.message}":
        quick: Field = ("combobox", page.word("Quick reply"), op.text)
        return page.submit([quick if op.text in QUICK_REPLIES else ("textbox", "Text", op.text)], "Send")
    if page.path == f"message/{op.message}":
        return page.click("link", "Reply")
    return _to_message(page, state, op.message)


def _forward_message(op: ops.ForwardMessage, page: ExpertPage, state: MailState) -> PageAction:
    if page.path == f"forward/{op.message}":
        return page.submit([("combobox", page.word("Send to"), op.to), ("textbox", "Text", op.text)], "Send")
    if page.path == f"message/{op.message}":
        return page.click("link", "Forward")
    return _to_message(page, state, op.message)


def _send_message(op: ops.SendMessage, page: ExpertPage, state: MailState) -> PageAction:
    if page.path != "compose":
        return page.click("link", "Compose")
    fields: list[Field] = [
        ("combobox", page.word("Send to"), op.to),
        ("combobox", page.word("Copy to"), op.copy or NOBODY),
        ("textbox", "Subject", op.subject),
        ("textbox", "Text", op.text),
    ]
    return page.submit(fields, "Send")


def _set_vacation_reply(op: ops.SetVacationReply, page: ExpertPage, state: MailState) -> PageAction:
    if page.path != "settings":
        return page.click("link", "Settings")
    return page.submit([("checkbox", page.word("Vacation reply"), op.value)], "Save")


def _set_signature(op: ops.SetSignature, page: ExpertPage, state: MailState) -> PageAction:
    if page.path != "settings":
        return page.click("link", "Settings")
    return page.submit([("textbox", page.word("Signature"), op.text)], "Save")


def _to_settings_page(page: ExpertPage, label: str) -> PageAction:
    return page.click("link", label if page.path == "settings" else "Settings")


def _block_sender(op: ops.BlockSender, page: ExpertPage, state: MailState) -> PageAction:
    if page.path != "blocked":
        return _to_settings_page(page, "Blocked senders")
    return page.submit([("combobox", page.word("From sender"), op.sender)], "Block")


def _add_rule(op: ops.AddRule, page: ExpertPage, state: MailState) -> PageAction:
    if page.path != "rules":
        return _to_settings_page(page, "Rules")
    fields: list[Field] = [
        ("combobox", page.word("From sender"), op.sender),
        ("combobox", page.word("Folder"), op.folder),
    ]
    return page.submit(fields, "Add rule")


def _read_message(op: ops.ReadMessage, page: ExpertPage, state: MailState) -> PageAction:
    if page.path != f"message/{op.message}":
        return _to_message(page, state, op.message)
    body = state.messages[op.message].body
    return PageAction("send_msg_to_user", text=body.removeprefix("We meet in ").partition(".")[0])


RULES: Mapping[type, Rule] = {
    ops.MoveMessage: _move_message,
    ops.StarMessage: _star_message,
    ops.MarkUnread: _mark_unread,
    ops.MarkAllRead: _mark_all_read,
    ops.EmptyTrash: _empty_trash,
    ops.SendReply: _send_reply,
    ops.ForwardMessage: _forward_message,
    ops.SendMessage: _send_message,
    ops.SetVacationReply: _set_vacation_reply,
    ops.SetSignature: _set_signature,
    ops.BlockSender: _block_sender,
    ops.AddRule: _add_rule,
    ops.ReadMessage: _read_message,
}
