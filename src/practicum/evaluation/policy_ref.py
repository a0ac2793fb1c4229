"""Who is examined: a scripted policy, a server's model, a model, an adapter, or the best a run's folder has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.base import Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.models.decoder import Decoder
from practicum.models.device import Device
from practicum.models.device import find as find_place
from practicum.registry import environment_maker
from practicum.rollout_setup import SCRIPTED, RolloutSetup, make_rollout_setup
from practicum.training.checkpoint import Checkpoints

STAGES: Mapping[str, tuple[str, ...]] = {
    "rl": ("rl/model", "rl_final", "rl"),
    "dpo": ("dpo/model", "dpo_final", "dpo"),
    "sft": ("sft/model", "sft_final", "sft"),
    "base": ("base/model", "base"),
}
"""Where a folder of stages keeps them, the last stage first: what was trained most is examined."""


@dataclass(frozen=True)
class PolicyRef:
    """A policy as it was found. With an `adapter`, `model` is what lies beneath it."""

    model: str
    stage: str
    adapter: str | None = None
    run: str | None = None
    """Folder of the training run, where its metrics.jsonl is."""

    @property
    def name(self) -> str:
        return self.adapter or self.model


def find(policy: str, url: str | None = None, base: str | None = None) -> PolicyRef:
    """A policy by name. A folder that is no model itself is searched: RL, then DPO, then SFT, then base."""
    if url is not None:
        return PolicyRef(policy, "server")
    if policy in SCRIPTED:
        return PolicyRef(policy, "scripted")
    folder = Path(policy).expanduser()
    if not folder.is_dir():
        return PolicyRef(policy, "model")
    if _is_model(folder):
        return _found(folder, "model", base)
    for stage, places in STAGES.items():
        for place in places:
            if _is_model(folder / place):
                return _found(folder / place, stage, base)
    if _is_model(folder / "model"):  # what `train`, `sft` and `dpo` leave in their folder
        return _found(folder / "model", "model", base)
    newest, _ = Checkpoints(folder).newest()
    if newest is not None and _is_model(newest / "actor"):
        return _found(newest / "actor", newest.name, base, folder)
    raise UserError(
        f"'{policy}' holds no model: neither it nor its rl/, dpo/, sft/, base/, model/ or newest checkpoint has a "
        "config.json or adapter_config.json."
    )


def make_bench(
    examinee: PolicyRef,
    environment: str,
    *,
    format: str | None,
    options: Mapping[str, Any],
    sampling: Sampling,
    max_turns: int,
    template: str | None,
    tokenizer: str,
    url: str | None,
    where: Device | None = None,
) -> RolloutSetup:
    """The environment with this policy at work in it."""
    if examinee.adapter is None:
        return make_rollout_setup(
            environment,
            examinee.model,
            format=format,
            model=tokenizer,
            options=options,
            sampling=sampling,
            max_turns=max_turns,
            template=template,
            url=url,
            where=where,
        )
    where = where or find_place()
    maker, chosen = environment_maker(environment, format, options)
    adapted = lora.load_adapter(
        loader.load(examinee.model, where.dtype, where.device), examinee.adapter, trainable=False
    )
    own = Path(examinee.adapter) / "chat_template.jinja"
    if template is None and own.is_file():  # what it was trained under
        adapted.tokenizer.chat_template = own.read_text(encoding="utf-8")
    renderer = Renderer(adapted.tokenizer, template, adapted.end_ids)
    engine = LocalEngine(Decoder(adapted.model), renderer, max_batch=where.sequences)
    agent = Agent(format=chosen, max_turns=max_turns, sampling=sampling)
    return RolloutSetup(maker, maker(), agent, engine, renderer, examinee.model, template)


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()


def _found(folder: Path, stage: str, base: str | None, run: Path | None = None) -> PolicyRef:
    """The model or adapter in a folder; its run's metrics lie beside or above it."""
    places = [run] if run is not None else [folder, folder.parent]
    metrics = next((str(place) for place in places if (place / "metrics.jsonl").is_file()), None)
    if (folder / "config.json").is_file():
        return PolicyRef(str(folder), stage, None, metrics)
    path = folder / "adapter_config.json"
    try:
        beneath = base or json.loads(path.read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        beneath = None
    if not isinstance(beneath, str) or not beneath:
        raise UserError(f"'{path}' does not say which model the adapter belongs to; name it with --base.")
    return PolicyRef(beneath, stage, str(folder), metrics)
