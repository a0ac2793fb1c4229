"""What AgentGym's worlds have in common: prompt, grammars, native and shaped reward, refusals, `data_idx`.

A world of its own writes `begin`, `act` and `task_at`; the rest is here. Commands come in as text, through the
agent loop (`step`) or over HTTP (`take`, see `server.py`), and both go the same way.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from practicum.chat.formats.registry import make_format
from practicum.environment import SPLITS, Action, Environment, Message, Observation, Step
from practicum.environments.agentgym.grammar.bracket import Brackets, Call, read_bracket
from practicum.environments.agentgym.grammar.line import GRAMMARS, Refused, one_line
from practicum.environments.agentgym.shaping import Ledger, Shaping
from practicum.errors import UserError, did_you_mean
from practicum.task import Task, content_hash

REWARDS = ("native", "shaped")
PROTOCOLS = ("system", "agentgym")
SPLIT_OF_BUCKET = ("train",) * 8 + ("val", "test")
AGREED = "OK. I will follow these instructions."


@dataclass(frozen=True, slots=True)
class Reply:
    """What a world answers to a command."""

    text: str
    native: float = 0.0
    """The world's own reward for this step."""
    kind: str = ""
    """What kind of step worked, for the shaped reward; '' is a look, which earns nothing."""
    done: bool = False
    success: bool = False
    cut: bool = False
    """Whether it ended because the world's own limit of steps was reached."""
    worth: float | None = None
    """Of a graded end, from 0 to 1; None: success is 1 and anything else 0."""
    legal: tuple[str, ...] | None = None
    """Commands that would work now, where the world knows them."""
    valid: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wire:
    """How AgentGym's own server of a world spells its messages."""

    id: str = "id"
    index: str = "data_idx"
    text: str = "observation"
    bare: bool = False
    """Whether `/create` answers with a bare number and `/reset` with a pair, as WebShop's does."""
    started: bool = False
    """Whether `/create` begins the task of its own number at once, as TextCraft's does."""
    facts: tuple[str, ...] = ()
    """What else can be asked for by GET; `ask` answers."""
    in_reset: tuple[str, ...] = ()
    """Facts that the answer to `/reset` also holds."""
    in_step: tuple[str, ...] = ()
    """Facts that the answer to `/step` also holds."""


class AgentGymEnvironment(Environment):
    """One episode at a time of a world that is spoken to in commands."""

    formats = ("react", "hf")
    instruction: ClassVar[str] = ""
    """What the agent is told once; `{usage}` becomes the commands of the grammar in force."""
    usage: ClassVar[str] = ""
    """AgentGym's commands, as the agent is shown them."""
    brackets: ClassVar[Brackets] = Brackets({})
    """The founding paper's commands."""
    shaping: ClassVar[Shaping] = Shaping()
    wire: ClassVar[Wire] = Wire()
    native_part: ClassVar[str] = "native"
    """The reward's one part where the native reward is paid."""

    def __init__(
        self, format: str = "react", grammar: str = "both", reward: str = "native", protocol: str = "system"
    ) -> None:
        self.check("grammar", grammar, GRAMMARS)
        self.check("reward", reward, REWARDS)
        self.check("protocol", protocol, PROTOCOLS)
        self.format = make_format(format)
        self.grammar, self.shaped, self.protocol = grammar, reward == "shaped", protocol
        if self.shaped:
            # A reply that does not parse is an error too.
            self.invalid_reward = self.shaping.penalty
        self._begun = False
        self._ended: Reply | None = None
        self._ledger = Ledger(self.shaping)

    # What a world writes.

    @abc.abstractmethod
    async def begin(self, task: Task, seed: int) -> Reply:
        """Start the task: the first thing the agent sees, task and all (`text`, and `legal` where known)."""

    @abc.abstractmethod
    async def act(self, command: str) -> Reply:
        """Do one command, an AgentGym sentence of one line in lower case. `Refused` says why it cannot be done."""

    @abc.abstractmethod
    def task_at(self, data_idx: int) -> Task:
        """The task that AgentGym's index names."""

    def progress(self) -> float | None:
        """How far the episode has come, from 0 to 1, where the world can tell."""
        return None

    def from_brackets(self, call: Call) -> str | None:
        """The sentence that a bracket command stands for; None if there is none. A world may look around first."""
        return self.brackets.sentence(call)

    def fact(self, name: str) -> Any:
        """What a client is told beyond the observation, as JSON: whatever `wire` lists."""
        raise NotImplementedError(f"{self.short} lists the fact '{name}' and does not tell it")

    def speak_plainly(self) -> None:
        """Leave out of observations what AgentGym's client, not its server, adds to them."""
        return None

    async def ask(self, name: str) -> Any:
        """A fact that is asked for by name; a world whose engine must be waited for overrides this."""
        return self.fact(name)

    # What all of them do.

    @property
    def short(self) -> str:
        """The name after the colon."""
        return self.name.partition(":")[2]

    @property
    def shown_usage(self) -> str:
        """The commands as the agent is told them: AgentGym's unless only brackets count."""
        return self.brackets.usage if self.grammar == "bracket" else self.usage

    def check(self, option: str, value: object, known: tuple[str, ...]) -> None:
        """Refuse a setting that does not exist."""
        if value not in known:
            raise UserError(f"{self.short} has no {option} '{value}'.{did_you_mean(str(value), known)}")

    def check_split(self, split: str) -> None:
        self.check("split", split, SPLITS)

    def write(self, sentence: str) -> str:
        """A sentence in the grammar in force, for experts."""
        return self.brackets.write(sentence) if self.grammar == "bracket" else sentence

    async def start(self, task: Task, seed: int) -> Reply:
        """Begin an episode, with a new ledger."""
        self._begun, self._ended, self._ledger = True, None, Ledger(self.shaping)
        return await self.begin(task, seed)

    async def take(self, text: str) -> Reply:
        """Do one command, however it is written. What cannot be read or done comes back as an invalid reply."""
        assert self._begun, "reset comes before step"
        if self._ended is not None:
            return replace(self._ended, text="The episode is over.", native=0.0, legal=None)
        try:
            reply = await self.act(self.read(text))
        except Refused as refusal:
            reply = Reply(str(refusal), valid=False)
        if reply.done:
            self._ended = reply
        return reply

    def read(self, text: str) -> str:
        """The command in a text as AgentGym's sentence, in whichever grammar is allowed."""
        line = one_line(text)
        call = read_bracket(line)
        if call is None:
            sentence = self.brackets.bare(line) if self.grammar == "bracket" else line
        else:
            sentence = self.from_brackets(call) if self.grammar != "agentgym" else None
        if not sentence:
            raise Refused(f"Could not execute '{line[:80]}'. Commands: {self.shown_usage}")
        return sentence

    def pay(self, reply: Reply, again: bool = False) -> dict[str, float]:
        """The parts of a reply's reward; what is said after the end (`again`) earns nothing."""
        if not self.shaped:
            return {self.native_part: 0.0 if again else reply.native}
        if again:
            return self._ledger.step("")
        if not reply.valid:
            return self._ledger.error()
        if reply.done and not reply.cut:
            return self._ledger.end(float(reply.success) if reply.worth is None else reply.worth)
        return self._ledger.step(reply.kind)

    async def reset(self, task: Task, seed: int) -> Observation:
        reply = await self.start(task, seed)
        guide = self.format.instructions(()) or "Reply with one command and nothing else."
        told = f"{self.instruction.format(usage=self.shown_usage)}\n{guide}"
        if self.protocol == "agentgym":
            opening = [Message("user", told), Message("assistant", AGREED)]
        else:
            opening = [Message("system", told)]
        return Observation((*opening, Message("user", reply.text)), legal=reply.legal)

    async def step(self, action: Action) -> Step:
        again = self._ended is not None
        if action.calls and not again:
            reply = Reply("There are no tools here; reply with one command.", valid=False)
        else:
            reply = await self.take(action.content)
        components = self.pay(reply, again)
        # A command world speaks as the user in every format; only the wording is the format's.
        text = reply.text if self.protocol == "agentgym" else self.format.observe(self.short, reply.text).content
        return Step(
            Observation((Message("user", text),), legal=reply.legal),
            reward=sum(components.values()),
            components=components,
            terminated=reply.done and not reply.cut,
            truncated=reply.cut,
            success=reply.success,
            progress=self.progress(),
            info={"valid": reply.valid, "native": reply.native, **reply.info},
        )

    async def truncate(self) -> Step:
        success = self._ended is not None and self._ended.success
        return Step(truncated=True, success=success, progress=self.progress())


def split_by_hash(name: str, key: Any) -> str:
    """The split that a task's own content decides: eight tenths train, one val, one test."""
    return SPLIT_OF_BUCKET[int(content_hash([name, key]), 16) % 10]


def by_hash(keys: list[Any], seed: int) -> list[Any]:
    """Keys in an order set by the seed, the same on every version of Python."""
    return sorted(keys, key=lambda key: content_hash([seed, key]))
