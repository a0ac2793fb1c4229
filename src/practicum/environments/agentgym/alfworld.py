"""`agentgym:alfworld`: household tasks in text, in ALFWorld's own engine.

The engine is TextWorld's with ALFRED's domain and grammar, in a worker process (`alfworld_host.py`). The games are
generated (`alfworld_games.py`: six kinds of task, any number of games) or ALFWorld's own files (`games=FOLDER`, the
folder with `train`, `valid_seen` and `valid_unseen`). With `mappings=FOLDER` they have AgentGym's numbers.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from practicum.environment import Action, ScriptedPolicy
from practicum.environments.agentgym.alfworld_file_expert import SearchingExpert
from practicum.environments.agentgym.alfworld_games import GENERATOR_VERSION, KINDS, kind_of
from practicum.environments.agentgym.base import AgentGymEnvironment, CommandResponse, ServerFields, by_hash
from practicum.environments.agentgym.grammar.bracket import Brackets, Call
from practicum.environments.agentgym.grammar.line import Refused
from practicum.environments.agentgym.shaping import Shaping
from practicum.environments.worker import WorkerPool, WorkerSession, shared_pool
from practicum.errors import UserError
from practicum.task import Task, split_of_content

HOST = "practicum.environments.agentgym.alfworld_host:AlfWorldHost"
EXPERTS = ("searching", "walkthrough", "planner")
FOLDERS = {"train": "train", "val": "valid_seen", "test": "valid_unseen"}
MAPPINGS = {"train": ("mappings_train.json", "train"), "test": ("mappings_test.json", "valid_train")}
"""AgentGym's lists of games, in the order of its numbers: its file, and the folder of the games."""
NUM_SHUFFLED_GAMES = 6000
"""Number of generated games that are shuffled together; more tasks repeat the cycle."""
LOOK_COMMANDS = ("look", "inventory", "examine", "help")
USAGE = (
    "go to X | take X from Y | move X to Y | open X | close X | use X | clean X with Y | heat X with Y | "
    "cool X with Y | slice X with Y | examine X | look | inventory | help"
)
BRACKETS = Brackets(
    {
        "goto": ("go to {}",),
        "take": ("take {} from {}",),
        "put": ("move {} to {}",),
        "open": ("open {}",),
        "close": ("close {}",),
        "heat": ("heat {} with {}",),
        "cool": ("cool {} with {}",),
        "clean": ("clean {} with {}",),
        "examine": ("examine {}",),
        "toggle": ("use {}",),
        "slice": ("slice {} with {}",),
        "look": ("look",),
        "inventory": ("inventory",),
        "help": ("help",),
    }
)
_plans: dict[tuple[str, int | str], tuple[str, ...]] = {}
_holds: dict[str, list[str]] = {}
"""What each type of furniture can hold; the searching expert uses it."""
_experts_used: set[str] = set()
"""Experts that were used: later episodes return their plan when they begin."""


class AlfWorld(AgentGymEnvironment):
    """Household tasks in ALFWorld's own engine: six kinds of generated games, or ALFWorld's own files."""

    name = "agentgym:alfworld"
    instruction = (
        "You are in a household and have a task. Commands: {usage}\n"
        "Things and furniture have a name and a number, such as mug 1. If nothing happens, the command was impossible."
    )
    usage = USAGE
    brackets = BRACKETS
    # Affine's worked example rewards two gotos: each new command that does something is rewarded once.
    shaping = Shaping(step=0.2, once=True)
    server_fields = ServerFields(
        index="game",
        facts=("available_actions",),
        in_reset=("available_actions", "task_type"),
        in_step=("available_actions",),
    )
    native_part = "completion"

    def __init__(
        self,
        format: str = "react",
        grammar: str = "both",
        reward: str = "native",
        protocol: str = "system",
        games: str = "made",
        kinds: str | Sequence[str] = (),
        expert: str = "searching",
        show_actions: bool = True,
        workers: int = 2,
        mappings: str | None = None,
        instruction: str | None = None,
    ) -> None:
        super().__init__(format, grammar, reward, protocol, instruction)
        self.check("expert", expert, EXPERTS)
        if workers < 1:
            raise UserError("alfworld needs at least one worker.")
        self.expert_kind, self.show_actions = expert, show_actions
        self.kinds = tuple([kinds] if isinstance(kinds, str) else kinds) or KINDS
        for kind in self.kinds:
            self.check("kind", kind, KINDS)
        self.folder = None if games == "made" else Path(games).expanduser()
        if self.folder is not None and not (self.folder / "train").is_dir():
            raise UserError(f"There are no ALFWorld games in '{games}'; point at the folder that holds 'train'.")
        if mappings is not None and self.folder is None:
            raise UserError("'mappings' numbers ALFWorld's own games: say where these are with games=FOLDER.")
        self.mappings = None if mappings is None else Path(mappings).expanduser()
        self._pool = pool_of(workers)
        self._session: WorkerSession | None = None
        self._legal: tuple[str, ...] = ()
        self._kind = ""

    async def begin(self, task: Task, seed: int) -> CommandResponse:
        """Start a game. The environment is deterministic; the seed has no effect."""
        game = self._game(task)
        if self._session is None or not self._session.alive:
            self._session = self._pool.open_session()
        key = (self.expert_kind, game)
        expert_to_plan = self.expert_kind if self.expert_kind in _experts_used and key not in _plans else ""
        response = await self._session.call("begin", game=game, expert=expert_to_plan)
        if expert_to_plan:
            _plans[key] = tuple(response["plan"])
        # AgentGym names ALFWorld's own games by their folders.
        own = isinstance(game, str)
        self._kind = "/".join(Path(str(game)).parts[-3:-1]) if own else str(task.fields.get("kind", ""))
        # The first paragraph is the engine's welcome text.
        return self._reply("\n".join(response["text"].split("\n\n")[1:]), response)

    async def act(self, command: str) -> CommandResponse:
        assert self._session is not None, "begin comes before act"
        response = await self._session.call("step", command=command)
        won = bool(response["won"])
        worked = response["valid"] and not command.startswith(LOOK_COMMANDS)
        return self._reply(response["text"], response, float(won), command if worked else "", won)

    def _reply(
        self, text: str, response: dict[str, Any], native: float = 0.0, kind: str = "", won: bool = False
    ) -> CommandResponse:
        self._legal = tuple(response["legal"])
        actions_text = "" if not self.show_actions or won else f"\nAVAILABLE ACTIONS: {self._actions_text()}"
        return CommandResponse(
            text + actions_text, native=native, kind=kind, done=won, success=won, legal=self._legal,
            valid=response.get("valid", True),
        )  # fmt: skip

    def _actions_text(self) -> str:
        return ",".join(map(self.write, self._legal))

    async def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def from_brackets(self, call: Call) -> str | None:
        """Translate a bracket command without numbers and places (`goto[fridge]`, `take[mug]`) if one command fits."""
        sentence = super().from_brackets(call)
        if sentence in self._legal or len(call.arguments) != 1 or call.verb not in BRACKETS.sentences:
            return sentence
        opening = BRACKETS.sentences[call.verb][0].partition("{}")[0]
        words = f"{opening}{call.arguments[0]} "
        fitting = [command for command in self._legal if f"{command} ".startswith(words)]
        if len(fitting) > 1:
            raise Refused(f"Which of these do you mean? {', '.join(map(self.write, fitting))}")
        return fitting[0] if fitting else words.strip()

    def omit_client_text(self) -> None:
        self.show_actions = False  # the client adds them from `available_actions`

    def fact(self, name: str) -> Any:
        return list(self._legal) if name == "available_actions" else self._kind

    def _game(self, task: Task) -> int | str:
        """Return what the engine loads: a number, or a file in the games' folder."""
        file, number = task.fields.get("file"), task.fields.get("data_idx")
        if isinstance(file, str):
            if self.folder is None:
                raise UserError(
                    f"Task '{task.id}' is one of ALFWorld's own games; say where they are with games=FOLDER."
                )
            if not (self.folder / file).is_file():
                raise UserError(f"The game of task '{task.id}' is not there: '{self.folder / file}'.")
            return str(self.folder / file)
        if not isinstance(number, int) or task.fields.get("generator") != GENERATOR_VERSION:
            raise UserError(
                f"Task '{task.id}' needs a 'data_idx' and the 'generator' {GENERATOR_VERSION}; make the tasks anew."
            )
        return number

    @property
    def num_indices(self) -> int | None:
        return None if self.folder is None else len(self._numbered_files())

    def _numbered_files(self) -> list[tuple[str, str]]:
        """Return split and file of every number: by AgentGym's lists, or by name with train first."""
        assert self.folder is not None
        if self.mappings is not None:
            return [(split, file) for split in MAPPINGS for file in _mapped(self.mappings, split)]
        return [(split, file) for split in FOLDERS for file in _files(self.folder, split)]

    def task_at(self, data_idx: int) -> Task:
        """Return the task of a generated game's number, or of the number of one of ALFWorld's files."""
        self.check_index(data_idx)
        if self.folder is None:
            return made_task(data_idx)
        return _file_task(*self._numbered_files()[data_idx], data_idx)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Generated games: a hash of the number decides the split, the kinds alternate. Files: their folders decide."""
        self.check_split(split)
        if self.folder is None:
            starts = [start for start, kind in enumerate(KINDS) if kind in self.kinds]
            numbers = [by_hash(list(range(start, NUM_SHUFFLED_GAMES, len(KINDS))), seed) for start in starts]
            lines = [[number for number in of_kind if _split_of(number) == split] for of_kind in numbers]
            order = [line[index] for index in range(min(map(len, lines))) for line in lines]
            return [made_task(order[n % len(order)] + NUM_SHUFFLED_GAMES * (n // len(order))) for n in range(count)]
        files = [[file, index] for index, (other, file) in enumerate(self._numbered_files()) if other == split]
        if self.mappings is not None and split == "val":  # AgentGym has no list of its own for these
            files = [[file, None] for file in _files(self.folder, split)]
        source = self.folder / FOLDERS[split] if self.mappings is None else self.mappings
        if not files:
            raise UserError(f"There are no '{split}' games in '{source}'.")
        numbered = [pair for pair in by_hash(files, seed) if self.kinds == KINDS or _file_kind(pair[0]) in self.kinds]
        if not numbered:
            raise UserError(f"There are no games of {', '.join(self.kinds)} in '{source}'.")
        return [_file_task(split, *numbered[n % len(numbered)]) for n in range(count)]

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy of a search for the objects, of the game's walkthrough, or of Fast Downward's plan.

        Later episodes of a generated game start with it.
        """
        if self._searches_files:
            if not _holds:  # `ready_expert` has not been called
                _holds.update(self._pool.ask("holds"))
            expert = SearchingExpert(_holds)
            return lambda observation: Action(content=self.write(expert.next_command(observation)))
        game = self._game(task)
        key = (self.expert_kind, game)
        _experts_used.add(self.expert_kind)
        if key not in _plans:  # `ready_expert` has not been called
            _plans[key] = tuple(self._pool.ask("plan", game=game, expert=self.expert_kind))
        plan = iter(_plans[key])
        return lambda observation: Action(content=self.write(next(plan, "look")))

    @property
    def _searches_files(self) -> bool:
        """Whether the expert plays by what it observes: the search of a generated game is part of the game."""
        return self.expert_kind == "searching" and self.folder is not None

    async def ready_expert(self, task: Task) -> None:
        if self._searches_files:
            if not _holds:
                _holds.update(await self._pool.call("holds"))
            return
        game = self._game(task)
        key = (self.expert_kind, game)
        _experts_used.add(self.expert_kind)
        if key not in _plans:
            _plans[key] = tuple(await self._pool.call("plan", game=game, expert=self.expert_kind))

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that gives a random possible command."""
        generator = random.Random(seed)
        return lambda observation: Action(content=self.write(generator.choice(observation.legal or ("look",))))


def made_task(number: int) -> Task:
    """Return the task of a number."""
    fields = {"data_idx": number, "kind": kind_of(number), "generator": GENERATOR_VERSION}
    return Task(f"alfworld-{kind_of(number)}-{number}", AlfWorld.name, _split_of(number), fields)


def pool_of(workers: int) -> WorkerPool:
    """Return the worker pool that all AlfWorld environments of these settings share."""
    for package in ("textworld", "alfworld", "fast_downward", "tatsu"):
        if importlib.util.find_spec(package) is None:
            remedy = "`make alfworld-planner` (GPL-3.0)" if package == "fast_downward" else "`make setup`"
            raise UserError(
                f"agentgym:alfworld needs the package '{package}': {remedy} installs it, or see docs/agentgym.md."
            )
    return shared_pool(HOST, {}, workers)


def _split_of(number: int) -> str:
    return split_of_content(["alfworld", number % NUM_SHUFFLED_GAMES])


@functools.lru_cache(maxsize=16)
def _files(folder: Path, split: str) -> tuple[str, ...]:
    """Return the playable game files of a split by name. Games with moved or sliced objects are not playable."""
    paths = sorted(path.relative_to(folder).as_posix() for path in (folder / FOLDERS[split]).rglob("game.tw-pddl"))
    return tuple(name for name in paths if "movable" not in name and "Sliced" not in name)


@functools.lru_cache(maxsize=16)
def _mapped(folder: Path, split: str) -> tuple[str, ...]:
    """Return the game files of one of AgentGym's lists, in its order."""
    name, games = MAPPINGS[split]
    try:
        rows = json.loads((folder / name).read_text(encoding="utf-8"))
        return tuple(f"{games}/{row['task_type']}/{row['task_id']}/game.tw-pddl" for row in rows)
    except OSError:
        raise UserError(
            f"There is no '{name}' in '{folder}'; point 'mappings' at AgentGym's agentenv-alfworld/configs."
        ) from None
    except (ValueError, TypeError, KeyError):
        raise UserError(f"'{folder / name}' is not one of AgentGym's lists of games.") from None


def _file_kind(file: str) -> str:
    return next((kind for kind in KINDS if kind in file), "")


def _file_task(split: str, file: str, data_idx: int | None) -> Task:
    name = "-".join(Path(file).parts[-3:-1])
    fields = {"file": file, "data_idx": data_idx, "kind": _file_kind(file)}
    if data_idx is None:
        del fields["data_idx"]
    return Task(f"alfworld-{name}", AlfWorld.name, split, fields)
