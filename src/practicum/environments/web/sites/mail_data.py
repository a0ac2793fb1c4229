"""Seeded data of the mail client: messages in folders, contacts, rules and settings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from practicum.environments.web.sites.state import SiteState

PEOPLE = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ivy", "Jon", "Kim", "Leo")
NUM_CONTACTS = 5
TOPICS = (
    "Lunch",
    "Trip",
    "Team",
    "Budget",
    "Garden",
    "School",
    "Office",
    "Music",
    "Party",
    "Travel",
    "Sports",
    "House",
)
KINDS = ("plan", "photos", "list", "notes", "report", "update", "question", "offer")
OWN_FOLDERS = ("Work", "Family", "School", "Friends", "Projects", "Bills")
QUICK_REPLIES = ("Yes", "No", "Thanks", "Later")
RARE_WORDS = ("lantern", "kettle", "piano", "bicycle", "umbrella", "blanket", "camera", "ladder")
SENTENCES = ("Please have a look.", "Tell me what you think.", "More details soon.", "Can you help?", "See below.")
ME = "Me"


@dataclass
class MailMessage:
    """A message. `answers` is the id of the message that it replies to or forwards."""

    sender: str
    to: list[str]
    subject: str
    body: str
    folder: str
    read: bool = True
    starred: bool = False
    answers: str = ""

    @property
    def label(self) -> str:
        """The text of a link to the message."""
        return f"{self.sender if self.sender != ME else 'To ' + ', '.join(self.to)}: {self.subject}"


@dataclass
class MailRule:
    """New messages of a sender go to a folder."""

    sender: str
    folder: str


@dataclass
class BlockedSender:
    """A sender whose messages are refused."""

    sender: str


@dataclass
class MailSettings:
    """The account's settings."""

    vacation_reply: bool = False
    signature: str = ""


@dataclass
class MailState(SiteState):
    """The state of a mail account."""

    STATIC: ClassVar[frozenset[str]] = frozenset({"contacts", "own_folders", "counter"})
    INCIDENTAL: ClassVar[Mapping[tuple[str, str], Any]] = {("messages", "read"): True}

    contacts: tuple[str, ...]
    own_folders: tuple[str, ...]
    messages: dict[str, MailMessage] = field(default_factory=dict)
    rules: dict[str, MailRule] = field(default_factory=dict)
    blocked: dict[str, BlockedSender] = field(default_factory=dict)
    settings: MailSettings = field(default_factory=MailSettings)
    counter: int = 0

    def in_folder(self, folder: str) -> list[str]:
        """Return the ids of a folder's messages, the newest first; `Starred` has those of all folders."""
        if folder == "Starred":
            return [key for key in reversed(self.messages) if self.messages[key].starred]
        return [key for key in reversed(self.messages) if self.messages[key].folder == folder]

    def add(self, message: MailMessage) -> str:
        """Add a message and return its id. Ids are never used twice."""
        self.counter += 1
        self.messages[f"m{self.counter}"] = message
        return f"m{self.counter}"

    def send(self, to: Sequence[str], subject: str, body: str, answers: str = "") -> None:
        """Send a message: a copy is in Sent."""
        self.add(MailMessage(ME, list(to), subject, body, "Sent", answers=answers))

    def reply(self, key: str, body: str) -> None:
        """Reply to a message."""
        message = self.messages[key]
        self.send([message.sender], f"Re: {message.subject}", body, key)

    def forward(self, key: str, to: str, body: str = "") -> None:
        """Forward a message."""
        self.send([to], f"Fw: {self.messages[key].subject}", body, key)

    def add_rule(self, sender: str, folder: str) -> None:
        """Add the rule of a sender, in place of an earlier one."""
        self.rules[sender] = MailRule(sender, folder)

    def block(self, sender: str) -> None:
        """Block a sender."""
        self.blocked[sender] = BlockedSender(sender)

    def mark_all_read(self) -> None:
        """Mark the messages of the inbox as read."""
        for key in self.in_folder("Inbox"):
            self.messages[key].read = True

    def empty_trash(self) -> None:
        """Delete the messages in the trash."""
        self.messages = {key: message for key, message in self.messages.items() if message.folder != "Trash"}


def make_mail(rng: random.Random) -> MailState:
    """Return an account with seven to nine messages in the inbox and some in the other folders."""
    contacts = tuple(rng.sample(PEOPLE, NUM_CONTACTS))
    state = MailState(contacts, tuple(rng.sample(OWN_FOLDERS, 2)))
    subjects = [f"{topic} {kind}" for topic in TOPICS for kind in KINDS]
    drawn = iter(rng.sample(subjects, 30))
    words = iter(rng.sample(RARE_WORDS, len(RARE_WORDS)))
    counts = {"Archive": rng.randint(7, 9), "Trash": rng.randint(2, 3), "Inbox": rng.randint(7, 9)}
    for folder, count in counts.items():
        for index in range(count):
            body = rng.choice(SENTENCES)
            if folder == "Archive" and index < 3:
                body = f"About the {next(words)}. {body}"
            sender = rng.choice(contacts)
            is_read = folder != "Inbox" or rng.random() < 0.5
            state.add(MailMessage(sender, [ME], next(drawn), body, folder, is_read))
    inbox = state.in_folder("Inbox")
    state.messages[inbox[1]].read, state.messages[inbox[2]].read = False, True
    state.settings = MailSettings(rng.random() < 0.5, rng.choice(("Best wishes", "Regards", "Thanks")))
    for key in rng.sample(sorted(key for key in state.messages if state.messages[key].folder == "Archive"), 2):
        state.messages[key].starred = True
    return state
