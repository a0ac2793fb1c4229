"""ScienceWorld's own engine in a worker: one Java process with many simulations.

The stock package's `env.step` queries the view, the inventory, the task and every valid action after each command; that
is nine tenths of its time. Here a step executes the command only, and the rest is queried when needed.

Parts of the simulator are global (its simplifier), so calls are serial and all simulations of a process have the same
simplifications. Java's identity hashes decide the order in which it lists objects; `-XX:hashCode=2` makes them
constant, and with that an episode is the same in every process.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from practicum.environments.worker_child import EngineBroken

JAVA_OPTIONS = (
    "-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2",
    "-Xms32m", "-XX:MinHeapFreeRatio=20", "-XX:MaxHeapFreeRatio=40", "-XX:-ShrinkHeapInSteps",
)  # fmt: skip
"""The last line returns memory: by default the heap grows with garbage up to its limit and stays there."""
WARM_UP_TASK = "boil"
MAX_SPARE_SIMULATIONS = 8
"""Number of idle simulations kept for later episodes. Each holds the state of its last episode."""
LOADS_PER_COLLECTION = 32
"""Number of loads between two garbage collections. A load leaves 12 MB of garbage, a collection takes 0.1 s."""


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
        # The first load of a Java process changes later solutions: do it before any task.
        self._load(self._make(), WARM_UP_TASK, 0, False)

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        every = (self.begin, self.step, self.valid, self.hint, self.goals, self.close_session, self.gold, self.facts)
        return {call.__name__: self._guard(call) for call in every}

    def alive(self) -> bool:
        return bool(self._java.poll() is None)

    def begin(self, session: int, task: str, variation: int, gold: bool) -> dict[str, Any]:
        """Load a task; return its description, the first observation and, with `gold`, the simulator's own solution."""
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
        """Return every command with an effect, in the simulator's order. This is slow."""
        return list(self._by_session[session].getValidActionObjectCombinations())

    def hint(self, session: int) -> dict[str, list[str]]:
        """Return action templates and objects."""
        simulation = self._by_session[session]
        return {
            "possible_actions": list(simulation.getPossibleActions()),
            "possible_objects": list(simulation.getPossibleObjects()),
        }

    def goals(self, session: int) -> str:
        return str(self._by_session[session].getGoalProgressStr())

    def close_session(self, session: int) -> None:
        """End a session; its simulation is reused, and of many idle ones most are released."""
        simulation = self._by_session.pop(session, None)
        if simulation is not None and len(self._spare) < MAX_SPARE_SIMULATIONS:
            self._spare.append(simulation)
        elif simulation is not None:
            self._gateway.detach(simulation)  # Python's garbage collector would release it late

    def gold(self, task: str, variation: int) -> list[str]:
        """Return the simulator's own solution of a task, from an idle simulation."""
        simulation = self._spare.pop() if self._spare else self._make()
        self._load(simulation, task, variation, True)
        self._spare.append(simulation)
        return list(simulation.getGoldActionSequence())

    def facts(self) -> dict[str, Any]:
        """Return the number of variations of each task, and the pid of Java."""
        simulation = self._make()
        names = list(simulation.getTaskNames())
        counts = {name: simulation.getTaskMaxVariations(name) for name in names}
        return {"variations": counts, "java": self._java.pid}

    def _load(self, simulation: Any, task: str, variation: int, gold: bool) -> None:
        simulation.load(task, variation, self.simplifications, gold)
        self._loads += 1
        if self._loads % LOADS_PER_COLLECTION == 0:
            self._gateway.jvm.System.gc()

    def _guard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call so that a dead Java process raises `EngineBroken`, unlike an error of the simulator."""
        from py4j.protocol import Py4JError, Py4JJavaError

        def guarded(**arguments: Any) -> Any:
            try:
                return call(**arguments)
            except Py4JJavaError:
                raise  # an exception of the simulator: Java still runs
            except (Py4JError, ConnectionError) as error:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._java.wait(timeout=1.0)
                    raise EngineBroken(f"Java does not answer: {error}") from error
                raise

        return guarded
