"""ScienceWorld's own engine, in a worker: one Java process in which many simulations live side by side.

The stock package's `env.step` asks the simulator for a look, the inventory, the task and every valid action after
each command; that is nine tenths of its time. Here a command costs the command itself, and the rest is
asked for when it is wanted.

The simulator is a global thing in places (its simplifier), so calls come one at a time and all simulations of a process
have the same simplifications. Java's identity hashes decide in what order it lists objects; `-XX:hashCode=2` makes
them all alike, and with that an episode is the same in every process.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from practicum.environments.worker_child import Broken

JAVA_OPTIONS = (
    "-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2",
    "-Xms32m", "-XX:MinHeapFreeRatio=20", "-XX:MaxHeapFreeRatio=40", "-XX:-ShrinkHeapInSteps",
)  # fmt: skip
"""The last line gives memory back: by default the heap grows with garbage up to its limit and stays there."""
WARM_UP = "boil"
SPARES = 8
"""Simulations kept for episodes to come. Each holds the world that was played in it last."""
SWEPT = 32
"""Worlds loaded between two collections of garbage. A world leaves 12 MB behind, a collection takes 0.1 s."""


class ScienceWorldHost:
    """Simulations by session."""

    def __init__(self, simplifications: str, megabytes: int) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from scienceworld.constants import BASEPATH, JAR_PATH

        self.simplifications = simplifications
        options = [*JAVA_OPTIONS, f"-Xmx{megabytes}m"]
        port, self._java = launch_gateway(
            classpath=JAR_PATH, die_on_exit=True, cwd=BASEPATH, return_proc=True, javaopts=options
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port), java_process=self._java)
        self._make = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface
        self._by_session: dict[int, Any] = {}
        self._spare: list[Any] = []
        self._loads = 0
        # The first load of a Java process leaves something behind that changes later solutions: have it over with.
        self._load(self._make(), WARM_UP, 0, False)

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        every = (self.begin, self.step, self.valid, self.hint, self.goals, self.close_session, self.gold, self.facts)
        return {call.__name__: self._guard(call) for call in every}

    def alive(self) -> bool:
        return bool(self._java.poll() is None)

    def begin(self, session: int, task: str, variation: int, gold: bool) -> dict[str, Any]:
        """Load a task; its description, the first look around and, if asked for, the simulator's own solution."""
        simulation = self._by_session.get(session)
        if simulation is None:
            simulation = self._by_session[session] = self._spare.pop() if self._spare else self._make()
        self._load(simulation, task, variation, gold)
        return {
            "task": simulation.getTaskDescription(),
            "text": simulation.step("look around"),
            "gold": list(simulation.getGoldActionSequence()) if gold else None,
        }

    def step(self, session: int, command: str, legal: bool) -> dict[str, Any]:
        simulation = self._by_session[session]
        text = simulation.step(command)
        return {
            "text": text,
            "score": round(100 * simulation.getScore()),
            "completed": simulation.getCompleted(),
            "moves": simulation.getNumMoves(),
            "legal": self.valid(session) if legal else None,
        }

    def valid(self, session: int) -> list[str]:
        """Every command that would do something, in the simulator's order. This is slow."""
        return list(self._by_session[session].getValidActionObjectCombinations())

    def hint(self, session: int) -> dict[str, list[str]]:
        """Action templates and objects."""
        simulation = self._by_session[session]
        return {
            "possible_actions": list(simulation.getPossibleActions()),
            "possible_objects": list(simulation.getPossibleObjects()),
        }

    def goals(self, session: int) -> str:
        return str(self._by_session[session].getGoalProgressStr())

    def close_session(self, session: int) -> None:
        """A simulation is used again; of many that are free, most are let go."""
        simulation = self._by_session.pop(session, None)
        if simulation is not None and len(self._spare) < SPARES:
            self._spare.append(simulation)
        elif simulation is not None:
            self._gateway.detach(simulation)  # Python's own collector would tell Java late

    def gold(self, task: str, variation: int) -> list[str]:
        """The simulator's own solution of a task, from a simulation that nobody plays in."""
        simulation = self._spare.pop() if self._spare else self._make()
        self._load(simulation, task, variation, True)
        self._spare.append(simulation)
        return list(simulation.getGoldActionSequence())

    def facts(self) -> dict[str, Any]:
        """How many variations each task has, and the Java process's number."""
        simulation = self._make()
        names = list(simulation.getTaskNames())
        counts = {name: simulation.getTaskMaxVariations(name) for name in names}
        return {"variations": counts, "java": self._java.pid}

    def _load(self, simulation: Any, task: str, variation: int, gold: bool) -> None:
        simulation.load(task, variation, self.simplifications, gold)
        self._loads += 1
        if self._loads % SWEPT == 0:
            self._gateway.jvm.System.gc()

    def _guard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, with a Java process that is gone told apart from an error of the simulator."""
        from py4j.protocol import Py4JError, Py4JJavaError

        def guarded(**arguments: Any) -> Any:
            try:
                return call(**arguments)
            except Py4JJavaError:
                raise  # the simulator's own exception: it lives
            except (Py4JError, ConnectionError) as error:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._java.wait(timeout=1.0)
                    raise Broken(f"Java does not answer: {error}") from error
                raise

        return guarded
