"""A manager and a worker: the manager sees four digits and names the second, the worker adds three to that digit.

The worker is shown nothing but the manager's word, so an episode succeeds only where both are right.
"""

import itertools
import random

from practicum import Action, Environment, Message, Observation, Step, Task
from practicum.task import content_hash, split_of_hash

MANAGER, WORKER = "manager", "worker"


class ManagerWorker(Environment):
    name = "manager-worker"
    roles = (WORKER, MANAGER)  # the first is trained where agent.train_roles says nothing
    formats = ("hf",)
    floor = 0.1

    def tasks(self, split, count, seed=0):
        triples = [t for t in itertools.permutations(range(10), 4) if split_of_hash(content_hash(list(t))) == split]
        random.Random(seed).shuffle(triples)
        rows = itertools.islice(itertools.cycle(triples) if split == "train" else triples, count)
        return [Task(f"{split}-{n}", self.name, split, {"digits": list(row)}) for n, row in enumerate(rows)]

    async def reset(self, task, seed):
        self.digit, self.answer = None, str((task.fields["digits"][1] + 3) % 10)
        shown = " ".join(map(str, task.fields["digits"]))
        return Observation((Message("user", f"Second: {shown}"),), role=MANAGER)

    async def step(self, action: Action) -> Step:
        if self.digit is None:
            self.digit = action.content.strip()
            return Step(Observation((Message("user", f"Add 3: {self.digit}"),), role=WORKER, fresh=True))
        right = action.content.strip() == self.answer
        worker_right = self.digit.isdigit() and action.content.strip() == str((int(self.digit) + 3) % 10)
        manager_right = self.digit.isdigit() and str((int(self.digit) + 3) % 10) == self.answer
        own = {WORKER: float(worker_right), MANAGER: float(manager_right)}
        return Step(reward=float(right), terminated=True, role_rewards=own)

    def expert(self, task):
        def act(observation: Observation) -> Action:
            if observation.role == MANAGER:
                return Action(content=str(task.fields["digits"][1]))
            return Action(content=str((int(observation.messages[-1].content[-1]) + 3) % 10))

        return act
