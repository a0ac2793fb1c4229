"""The mail client: folders, search, messages to star, move, delete, answer and forward, rules, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import urlencode

from practicum.environments.web.sites import html as h
from practicum.environments.web.sites.mail_data import QUICK_REPLIES, MailMessage, MailState
from practicum.environments.web.sites.site import CHOOSE, FormError, NotFound, Site, SitePage, page_number, require_room
from practicum.environments.web.sites.variation import Variation

PAGE_SIZE = 6
NOBODY = "Nobody"
FOLDER_LABELS = {"Inbox": "Inbox", "Starred": "Starred", "Archive": "Archived", "Sent": "Sent", "Trash": "Trash"}
"""The folders that every account has, and the texts of the links to them."""


class Mail(Site):
    """A mail client over a `MailState`."""

    name: ClassVar[str] = "mail"

    def __init__(self, state: MailState, variation: Variation) -> None:
        super().__init__(variation)
        self.state = state

    def navigation(self) -> h.Html:
        links = [self.nav_link(label, f"folder/{name}") for name, label in FOLDER_LABELS.items()]
        links += [h.link(name, self.url(f"folder/{name}")) for name in self.state.own_folders]
        links += [self.nav_link("Compose", "compose"), self.nav_link("Settings", "settings")]
        return h.join((*links, self.search_form()))

    # -- pages ----------------------------------------------------------------------------

    def get(self, path: Sequence[str], query: Mapping[str, str]) -> SitePage:
        match list(path):
            case []:
                return self._folder("Inbox", query)
            case ["folder", name] if name in (*FOLDER_LABELS, *self.state.own_folders):
                return self._folder(name, query)
            case ["search"]:
                return self._search(query)
            case ["message", key]:
                return self._message(key)
            case ["reply", key]:
                return self._reply(key)
            case ["forward", key]:
                return self._forward(key)
            case ["compose"]:
                return self._compose()
            case ["settings"]:
                return self._settings()
            case ["rules"]:
                return self._rules()
            case ["blocked"]:
                return self._blocked()
        raise NotFound

    def _find(self, key: str) -> MailMessage:
        if key not in self.state.messages:
            raise NotFound
        return self.state.messages[key]

    def _folder(self, name: str, query: Mapping[str, str]) -> SitePage:
        parts: list[str] = [self._listing(self.state.in_folder(name), f"folder/{name}", query)]
        if name == "Inbox":
            parts.append(self.post_button("Mark all as read", "read-all"))
        if name == "Trash":
            parts.append(self.post_button("Empty trash", "empty-trash"))
        return SitePage(self.word(FOLDER_LABELS.get(name, name)), h.join(parts))

    def _search(self, query: Mapping[str, str]) -> SitePage:
        words = query.get("q", "").casefold().split()
        matches = []
        for key in reversed(self.state.messages):
            message = self.state.messages[key]
            text = f"{message.sender} {message.subject} {message.body}".casefold()
            if words and all(word in text for word in words):
                matches.append(key)
        return SitePage(self.word("Search"), self._listing(matches, "search", query))

    def _listing(self, keys: Sequence[str], path: str, query: Mapping[str, str]) -> h.Html:
        """Return links to messages in pages of six."""
        keys = self.variation.reorder(path, keys)
        page = page_number(query)
        rows = []
        labels: set[str] = set()
        for key in keys[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]:
            message = self.state.messages[key]
            marks = [mark for mark, holds in (("new", not message.read), ("starred", message.starred)) if holds]
            label = self._unique_label(message.label, key, labels)
            rows.append(h.join((h.link(label, self.url(f"message/{key}")), " " + " ".join(marks))))
        parts: list[str] = [h.bullets(rows) if rows else h.paragraph("No messages.")]
        kept = {"q": query["q"]} if "q" in query else {}
        if page > 1:
            parts.append(h.link(self.word("Previous"), self.url(f"{path}?{urlencode({**kept, 'page': page - 1})}")))
        if len(keys) > page * PAGE_SIZE:
            parts.append(h.link(self.word("Next"), self.url(f"{path}?{urlencode({**kept, 'page': page + 1})}")))
        return h.join(parts)

    def _unique_label(self, label: str, key: str, used: set[str]) -> str:
        """Return a label of at most 50 characters that no other row of the page has."""
        label = label[:40]
        label = label if label not in used else f"{label} ({key})"
        used.add(label)
        return label

    def _message(self, key: str) -> SitePage:
        message = self._find(key)
        message.read = True
        people = f"From {message.sender} to {', '.join(message.to)}"
        parts: list[str] = [h.paragraph(people), h.paragraph(message.body)]
        if message.folder == "Trash":
            parts += [
                self.post_button("Restore", f"move/{key}/Inbox"),
                self.post_button("Delete forever", f"erase/{key}"),
            ]
            return SitePage(message.subject[:60], h.join(parts))
        if message.folder != "Sent":
            parts.append(h.link(self.word("Reply"), self.url(f"reply/{key}")))
        parts.append(h.link(self.word("Forward"), self.url(f"forward/{key}")))
        parts.append(self.post_button("Delete", f"move/{key}/Trash"))
        if message.folder == "Inbox":
            parts.append(self.post_button("Archive", f"move/{key}/Archive"))
        parts.append(self.post_button("Unstar" if message.starred else "Star", f"star/{key}"))
        parts.append(self.post_button("Mark as unread", f"unread/{key}"))
        folders = (CHOOSE, *self.state.own_folders)
        parts.append(
            h.form(
                self.url(f"file/{key}"), h.combobox(self.word("Folder"), "folder", folders), h.button(self.word("Move"))
            )
        )
        return SitePage(message.subject[:60], h.join(parts))

    def _reply(self, key: str) -> SitePage:
        message = self._find(key)
        quick = (CHOOSE, *self.variation.reorder("quick", QUICK_REPLIES))
        fields = h.form(
            self.url(f"reply/{key}"),
            h.combobox(self.word("Quick reply"), "quick", quick),
            h.text_area("Text", "text"),
            h.button(self.word("Send")),
        )
        return SitePage(f"Reply to {message.sender}", fields)

    def _contacts(self, label: str, name: str, first: str = CHOOSE) -> h.Html:
        return h.combobox(self.word(label), name, (first, *self.variation.reorder("contacts", self.state.contacts)))

    def _forward(self, key: str) -> SitePage:
        message = self._find(key)
        fields = (self._contacts("Send to", "to"), h.text_area("Text", "text"), h.button(self.word("Send")))
        return SitePage(f"Forward {message.subject[:50]}", h.form(self.url(f"forward/{key}"), *fields))

    def _compose(self) -> SitePage:
        fields = h.form(
            self.url("compose"),
            self._contacts("Send to", "to"),
            self._contacts("Copy to", "copy", NOBODY),
            h.textbox("Subject", "subject"),
            h.text_area("Text", "text"),
            h.button(self.word("Send")),
        )
        return SitePage(self.word("Compose"), fields)

    def _settings(self) -> SitePage:
        settings = self.state.settings
        fields = h.form(
            self.url("settings"),
            h.checkbox(self.word("Vacation reply"), "vacation", settings.vacation_reply),
            h.textbox(self.word("Signature"), "signature", settings.signature),
            h.button(self.word("Save")),
        )
        pages = (self.nav_link("Rules", "rules"), self.nav_link("Blocked senders", "blocked"))
        return SitePage(self.word("Settings"), h.join((fields, h.bullets(pages))))

    def _rules(self) -> SitePage:
        rows = [
            h.join((f"{rule.sender} to {rule.folder} ", self.post_button("Remove rule", f"unrule/{key}", rule.sender)))
            for key, rule in self.state.rules.items()
        ]
        folders = (CHOOSE, *self.state.own_folders, "Archive", "Trash")
        folder = h.combobox(self.word("Folder"), "folder", folders)
        fields = h.form(
            self.url("rules"), self._contacts("From sender", "sender"), folder, h.button(self.word("Add rule"))
        )
        return SitePage(self.word("Rules"), h.join((h.bullets(rows), fields)))

    def _blocked(self) -> SitePage:
        rows = [self.post_button("Unblock", f"unblock/{key}", key) for key in self.state.blocked]
        fields = h.form(self.url("blocked"), self._contacts("From sender", "sender"), h.button(self.word("Block")))
        return SitePage(self.word("Blocked senders"), h.join((h.bullets(rows), fields)))

    # -- forms ----------------------------------------------------------------------------

    def post(self, path: Sequence[str], form: Mapping[str, str]) -> str:
        state = self.state
        match list(path):
            case ["read-all"]:
                state.mark_all_read()
                return "folder/Inbox"
            case ["empty-trash"]:
                state.empty_trash()
                return "folder/Trash"
            case ["move", key, ("Inbox" | "Archive" | "Trash") as folder]:
                return self._move(key, folder)
            case ["file", key]:
                if form.get("folder", "") not in state.own_folders:
                    raise FormError("Choose a folder.", f"message/{self._key(key)}")
                return self._move(key, form["folder"])
            case ["erase", key] if self._find(key).folder == "Trash":
                del state.messages[key]
                return "folder/Trash"
            case ["star", key]:
                message = self._find(key)
                message.starred = not message.starred
                return f"message/{key}"
            case ["unread", key]:
                message = self._find(key)
                message.read = False
                return f"folder/{message.folder}"
            case [("reply" | "forward") as verb, key]:
                return self._post_answer(verb, self._key(key), form)
            case ["compose"]:
                return self._post_compose(form)
            case ["settings"]:
                state.settings.vacation_reply = "vacation" in form
                state.settings.signature = form.get("signature", "").strip()
                self.message = "Saved."
                return "settings"
            case [("rules" | "blocked") as page]:
                return self._post_sender(page, form)
            case ["unrule", key] if key in state.rules:
                del state.rules[key]
                return "rules"
            case ["unblock", key] if key in state.blocked:
                del state.blocked[key]
                return "blocked"
        raise NotFound

    def _key(self, key: str) -> str:
        self._find(key)
        return key

    def _move(self, key: str, folder: str) -> str:
        """Move a message and show the folder that it came from."""
        message = self._find(key)
        origin, message.folder = message.folder, folder
        self.message = f"Moved to {folder}."
        return f"folder/{origin}"

    def _contact(self, form: Mapping[str, str], name: str, page: str) -> str:
        contact = form.get(name, "")
        if contact not in self.state.contacts:
            raise FormError("Choose a person.", page)
        return contact

    def _post_answer(self, verb: str, key: str, form: Mapping[str, str]) -> str:
        page, text = f"{verb}/{key}", form.get("text", "").strip()
        require_room(self.state.messages, page)
        if verb == "forward":
            self.state.forward(key, self._contact(form, "to", page), text)
        else:
            text = text or form.get("quick", CHOOSE)
            if text == CHOOSE:
                raise FormError("Write a text or choose a quick reply.", page)
            self.state.reply(key, text)
        self.message = "Sent."
        return f"message/{key}"

    def _post_compose(self, form: Mapping[str, str]) -> str:
        require_room(self.state.messages, "compose")
        to, copy = self._contact(form, "to", "compose"), form.get("copy", NOBODY)
        if copy not in (NOBODY, *self.state.contacts):
            raise FormError("Choose a person.", "compose")
        subject, text = form.get("subject", "").strip(), form.get("text", "").strip()
        if not subject or not text:
            raise FormError("Write a subject and a text.", "compose")
        self.state.send([to] if copy in (NOBODY, to) else sorted([to, copy]), subject, text)
        self.message = "Sent."
        return "folder/Sent"

    def _post_sender(self, page: str, form: Mapping[str, str]) -> str:
        sender = self._contact(form, "sender", page)
        if page == "blocked":
            self.state.block(sender)
            return page
        folder = form.get("folder", "")
        if folder not in (*self.state.own_folders, "Archive", "Trash"):
            raise FormError("Choose a folder.", page)
        self.state.add_rule(sender, folder)
        return page
