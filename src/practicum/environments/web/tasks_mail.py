"""Operations and task templates of the mail client."""

from __future__ import annotations

import random
from dataclasses import dataclass

from practicum.environments.web.sites.mail_data import QUICK_REPLIES, MailMessage, MailState
from practicum.environments.web.tasks import TaskInstance, TaskTemplate

TEXTS = ("See you at noon", "I will be late", "Please call me", "All is well", "I agree", "Not this week")
SUBJECTS = ("Hello", "Dinner", "Next steps", "Holiday", "Tickets", "Meeting")
SIGNATURES = ("Kind regards", "Cheers", "All the best", "Yours")
FIRST_PAGE = 6


@dataclass(frozen=True)
class MoveMessage:
    """Move a message to a folder: delete, archive, restore or file it."""

    message: str
    folder: str

    def apply(self, state: MailState) -> None:
        state.messages[self.message].folder = self.folder


@dataclass(frozen=True)
class StarMessage:
    """Star a message, or take the star away."""

    message: str
    starred: bool = True
    search: str = ""
    """A word by which to search the message, where its subject is not known."""

    def apply(self, state: MailState) -> None:
        state.messages[self.message].starred = self.starred


@dataclass(frozen=True)
class MarkUnread:
    """Mark a message as unread."""

    message: str

    def apply(self, state: MailState) -> None:
        state.messages[self.message].read = False


@dataclass(frozen=True)
class MarkAllRead:
    """Mark the messages of the inbox as read."""

    def apply(self, state: MailState) -> None:
        state.mark_all_read()


@dataclass(frozen=True)
class EmptyTrash:
    """Delete the messages in the trash."""

    def apply(self, state: MailState) -> None:
        state.empty_trash()


@dataclass(frozen=True)
class SendReply:
    """Reply to a message, with a quick reply or a text."""

    message: str
    text: str

    def apply(self, state: MailState) -> None:
        state.reply(self.message, self.text)


@dataclass(frozen=True)
class ForwardMessage:
    """Forward a message, with a text or without."""

    message: str
    to: str
    text: str = ""

    def apply(self, state: MailState) -> None:
        state.forward(self.message, self.to, self.text)


@dataclass(frozen=True)
class SendMessage:
    """Write a new message."""

    to: str
    subject: str
    text: str
    copy: str = ""

    def apply(self, state: MailState) -> None:
        state.send(sorted([self.to, self.copy]) if self.copy else [self.to], self.subject, self.text)


@dataclass(frozen=True)
class SetVacationReply:
    """Turn the vacation reply on or off."""

    value: bool

    def apply(self, state: MailState) -> None:
        state.settings.vacation_reply = self.value


@dataclass(frozen=True)
class SetSignature:
    """Change the signature."""

    text: str

    def apply(self, state: MailState) -> None:
        state.settings.signature = self.text


@dataclass(frozen=True)
class BlockSender:
    """Block a sender."""

    sender: str

    def apply(self, state: MailState) -> None:
        state.block(self.sender)


@dataclass(frozen=True)
class AddRule:
    """Let new messages of a sender go to a folder."""

    sender: str
    folder: str

    def apply(self, state: MailState) -> None:
        state.add_rule(self.sender, self.folder)


@dataclass(frozen=True)
class ReadMessage:
    """Open a message that is unread."""

    message: str

    def apply(self, state: MailState) -> None:
        state.messages[self.message].read = True


# -- what to draw -------------------------------------------------------------------------


def inbox_message(rng: random.Random, state: MailState) -> tuple[str, MailMessage]:
    """Return a message of the inbox's first page."""
    key = rng.choice(state.in_folder("Inbox")[:FIRST_PAGE])
    return key, state.messages[key]


def two_messages(rng: random.Random, state: MailState) -> list[tuple[str, MailMessage]]:
    """Return two messages of the inbox's first page."""
    return [(key, state.messages[key]) for key in rng.sample(state.in_folder("Inbox")[:FIRST_PAGE], 2)]


def messages_of_a_sender(rng: random.Random, state: MailState) -> tuple[str, list[str]]:
    """Return a sender with exactly two messages in the inbox, and their ids; the inbox is changed for it."""
    inbox = state.in_folder("Inbox")
    sender = rng.choice(state.contacts)
    others = [name for name in state.contacts if name != sender]
    chosen = rng.sample(inbox[:FIRST_PAGE], 2)
    for key in inbox:
        message = state.messages[key]
        message.sender = sender if key in chosen else rng.choice(others)
    return sender, [key for key in inbox if key in chosen]


# -- level 1 ------------------------------------------------------------------------------


def _star(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    return TaskInstance(f"Star the message {message.label}.", (StarMessage(key),))


def _delete(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    return TaskInstance(f"Delete the message {message.label}.", (MoveMessage(key, "Trash"),))


def _archive(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    return TaskInstance(f"Archive the message {message.label}.", (MoveMessage(key, "Archive"),))


def _read_all(rng: random.Random, state: MailState) -> TaskInstance:
    return TaskInstance("Mark all as read.", (MarkAllRead(),))


def _empty_trash(rng: random.Random, state: MailState) -> TaskInstance:
    return TaskInstance("Empty trash.", (EmptyTrash(),))


def _unread(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    message.read = True
    return TaskInstance(f"Mark as unread the message {message.label}.", (MarkUnread(key),))


# -- level 2 ------------------------------------------------------------------------------


def _move(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    folder = rng.choice(state.own_folders)
    return TaskInstance(f"Move the message {message.label}. Folder: {folder}.", (MoveMessage(key, folder),))


def _quick_reply(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    text = rng.choice(QUICK_REPLIES)
    return TaskInstance(f"Reply to {message.label}. Quick reply: {text}.", (SendReply(key, text),))


def _forward(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    to = rng.choice([name for name in state.contacts if name != message.sender])
    return TaskInstance(f"Forward the message {message.label}. Send to: {to}.", (ForwardMessage(key, to),))


def _vacation(rng: random.Random, state: MailState) -> TaskInstance:
    value = not state.settings.vacation_reply
    return TaskInstance(
        f"Settings: {'tick' if value else 'untick'} Vacation reply and save.", (SetVacationReply(value),)
    )


def _restore(rng: random.Random, state: MailState) -> TaskInstance:
    key = rng.choice(state.in_folder("Trash"))
    return TaskInstance(f"Trash: restore the message {state.messages[key].label}.", (MoveMessage(key, "Inbox"),))


def _unstar(rng: random.Random, state: MailState) -> TaskInstance:
    key = rng.choice(state.in_folder("Starred"))
    return TaskInstance(f"Starred: unstar the message {state.messages[key].label}.", (StarMessage(key, False),))


def _block(rng: random.Random, state: MailState) -> TaskInstance:
    sender = rng.choice(state.contacts)
    return TaskInstance(f"Settings: blocked senders: block. From sender: {sender}.", (BlockSender(sender),))


def _reply_text(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    text = rng.choice(TEXTS)
    return TaskInstance(f"Reply to {message.label}. Text: {text}.", (SendReply(key, text),))


def _compose(rng: random.Random, state: MailState) -> TaskInstance:
    to, subject, text = rng.choice(state.contacts), rng.choice(SUBJECTS), rng.choice(TEXTS)
    goal = f"Compose. Send to: {to}. Subject: {subject}. Text: {text}."
    return TaskInstance(goal, (SendMessage(to, subject, text),))


def _signature(rng: random.Random, state: MailState) -> TaskInstance:
    text = rng.choice(SIGNATURES)
    return TaskInstance(f"Settings: signature: {text}.", (SetSignature(text),))


def _search_star(rng: random.Random, state: MailState) -> TaskInstance:
    archived = [key for key in state.in_folder("Archive") if state.messages[key].body.startswith("About")]
    key = rng.choice([key for key in archived if not state.messages[key].starred] or archived)
    state.messages[key].starred = False
    word = state.messages[key].body.split()[2].rstrip(".")
    return TaskInstance(f"Search {word} and star the message.", (StarMessage(key, search=word),))


def _room(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    answer = f"Room {rng.randint(11, 99)}"
    message.body, message.read = f"We meet in {answer}. {message.body}", False
    return TaskInstance(f"Which room does the message {message.label} name?", (ReadMessage(key),), answer=answer)


# -- level 3 ------------------------------------------------------------------------------


def _delete_sender(rng: random.Random, state: MailState) -> TaskInstance:
    sender, keys = messages_of_a_sender(rng, state)
    return TaskInstance(f"Inbox: delete both messages of {sender}.", tuple(MoveMessage(key, "Trash") for key in keys))


def _reply_archive(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    text = rng.choice(QUICK_REPLIES)
    goal = f"Reply to {message.label}. Quick reply: {text}. Then archive it."
    return TaskInstance(goal, (SendReply(key, text), MoveMessage(key, "Archive")))


def _star_two(rng: random.Random, state: MailState) -> TaskInstance:
    chosen = two_messages(rng, state)
    goal = f"Star the messages {chosen[0][1].label} and {chosen[1][1].label}."
    return TaskInstance(goal, tuple(StarMessage(key) for key, _ in chosen))


def _forward_delete(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    to = rng.choice([name for name in state.contacts if name != message.sender])
    goal = f"Forward the message {message.label}. Send to: {to}. Then delete it."
    return TaskInstance(goal, (ForwardMessage(key, to), MoveMessage(key, "Trash")))


def _rule_move(rng: random.Random, state: MailState) -> TaskInstance:
    key, message = inbox_message(rng, state)
    folder = rng.choice(state.own_folders)
    rule = f"Settings: rules: add rule. From sender: {message.sender}. Folder: {folder}."
    goal = f"{rule} Then move {message.label} to {folder}."
    return TaskInstance(goal, (AddRule(message.sender, folder), MoveMessage(key, folder)))


def _reply_two(rng: random.Random, state: MailState) -> TaskInstance:
    chosen = two_messages(rng, state)
    texts = rng.sample(QUICK_REPLIES, 2)
    parts = [
        f"Reply to {message.label}. Quick reply: {text}." for (_, message), text in zip(chosen, texts, strict=True)
    ]
    operations = tuple(SendReply(key, text) for (key, _), text in zip(chosen, texts, strict=True))
    return TaskInstance(" Then ".join(parts), operations)


def _compose_copy(rng: random.Random, state: MailState) -> TaskInstance:
    to, copy = rng.sample(state.contacts, 2)
    key, message = inbox_message(rng, state)
    subject, text = rng.choice(SUBJECTS), rng.choice(TEXTS)
    goal = f"Compose. Send to: {to}. Copy to: {copy}. Subject: {subject}. Text: {text}. Then delete {message.label}."
    return TaskInstance(goal, (SendMessage(to, subject, text, copy), MoveMessage(key, "Trash")))


def _door_code(rng: random.Random, state: MailState) -> TaskInstance:
    (first, source), (second, question) = two_messages(rng, state)
    code = str(rng.randint(1000, 9999))
    source.read = False
    source.body, question.body = f"The door code is {code}.", "What is the door code?"
    goal = f"Read the door code in {source.label}. Then reply to {question.label}. Text: the code."
    return TaskInstance(goal, (ReadMessage(first), SendReply(second, code)))


TEMPLATES = (
    TaskTemplate("mail/star", 1, "train", _star),
    TaskTemplate("mail/delete", 1, "train", _delete),
    TaskTemplate("mail/archive", 1, "train", _archive),
    TaskTemplate("mail/read-all", 1, "train", _read_all),
    TaskTemplate("mail/empty-trash", 1, "val", _empty_trash),
    TaskTemplate("mail/unread", 1, "test", _unread),
    TaskTemplate("mail/move", 2, "train", _move),
    TaskTemplate("mail/quick-reply", 2, "train", _quick_reply),
    TaskTemplate("mail/forward", 2, "train", _forward),
    TaskTemplate("mail/vacation", 2, "train", _vacation),
    TaskTemplate("mail/restore", 2, "train", _restore),
    TaskTemplate("mail/reply-text", 2, "train", _reply_text, needs_text=True),
    TaskTemplate("mail/compose", 2, "train", _compose, needs_text=True),
    TaskTemplate("mail/search-star", 2, "train", _search_star, needs_text=True),
    TaskTemplate("mail/unstar", 2, "val", _unstar),
    TaskTemplate("mail/room", 2, "val", _room, needs_text=True),
    TaskTemplate("mail/block", 2, "test", _block),
    TaskTemplate("mail/signature", 2, "test", _signature, needs_text=True),
    TaskTemplate("mail/delete-sender", 3, "train", _delete_sender),
    TaskTemplate("mail/reply-archive", 3, "train", _reply_archive),
    TaskTemplate("mail/star-two", 3, "train", _star_two),
    TaskTemplate("mail/compose-copy", 3, "train", _compose_copy, needs_text=True),
    TaskTemplate("mail/forward-delete", 3, "val", _forward_delete),
    TaskTemplate("mail/rule-move", 3, "test", _rule_move),
    TaskTemplate("mail/reply-two", 3, "test", _reply_two),
    TaskTemplate("mail/door-code", 3, "test", _door_code, needs_text=True),
)
