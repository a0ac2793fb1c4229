"""`practicum serve MODEL`: a model and its adapters behind OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser

if TYPE_CHECKING:
    from practicum.serving.promotion import PromotionFollower
    from practicum.serving.served_models import ModelLoader, ServedModels

MAX_PARITY_PROMPTS = 16
VLLM_REQUESTS = 256
"""Replies at once of a vLLM server, which has a queue of its own."""
OWN_ENGINE_OPTIONS = ("device", "dtype", "gpu_memory_utilization", "prefix_cache_mib")
"""Options of an engine of our own, which a vLLM server that runs already does not follow."""
REFUSED_CODE = "--trust-remote-code is refused: code that comes with a model's files is never run"


def run(argv: list[str]) -> int:
    parser = ArgumentParser(prog="practicum serve", description=__doc__)
    parser.add_argument(
        "model", help="a model: name, hub id, folder of a model, adapter or run; with --registry: its name"
    )
    parser.add_argument(
        "--registry", type=Path, help="serve the promoted version of MODEL there, and follow its changes"
    )
    parser.add_argument("--parity-episodes", type=Path, help="stored episodes that a new version is checked on")
    parser.add_argument(
        "--vllm-url", metavar="URL", help="a vLLM server that samples (key: VLLM_API_KEY); MODEL is its"
    )
    parser.add_argument("--served-model-name", nargs="+", metavar="NAME", help="names in the API (default: MODEL)")
    parser.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME=PATH", help="adapters, each by its name")
    parser.add_argument("--enable-lora", action="store_true", help="accepted; adapters are always possible")
    parser.add_argument("--trust-remote-code", action="store_true", help="refused: no code of a model is ever run")
    parser.add_argument("--template", help="chat template by name (default: the model's own)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="share of a GPU's memory (0.9)")
    parser.add_argument("--max-model-len", type=int, help="tokens of prompt and reply together, at most")
    parser.add_argument(
        "--prefix-cache-mib",
        type=int,
        help="memory for prompts and replies to continue (1024; on a GPU 8192)",
    )
    parser.add_argument("--max-num-seqs", type=int, help="replies decoded at once (64; on a GPU 256)")
    parser.add_argument("--return-tokens-as-token-ids", action="store_true", help="log-probs name tokens as token_id:N")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="port (default: 8000; 0: any free one)")
    parser.add_argument("--api-key", action="append", help="key that clients must send (also PRACTICUM_API_KEY)")
    parser.add_argument("--max-body-bytes", type=int, default=16 << 20, help="longest request body (16 MiB)")
    parser.add_argument("--max-queue", type=int, default=1024, help="requests that may wait; others get status 429")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a request may take (600)")
    parser.add_argument("--drain-seconds", type=float, default=60.0, help="seconds that replies get on SIGTERM (60)")
    args = parser.parse_args(argv)
    _check(args)
    if args.vllm_url is not None:
        _check_vllm({name: (getattr(args, name), parser.get_default(name)) for name in OWN_ENGINE_OPTIONS})
    try:
        return _serve(args)
    except KeyboardInterrupt:  # before the server has signal handlers of its own, or a second Ctrl-C at its end
        print("\npracticum: stopped.", file=sys.stderr)
        return 130


def _check(args: argparse.Namespace) -> None:
    if args.trust_remote_code:
        raise UserError(f"{REFUSED_CODE}; leave the option out, models of known architectures do not need it.")
    if not 0 <= args.port < 65536:
        raise UserError(f"--port {args.port}: a port is a number from 0 to 65535.")
    if not 0 < args.gpu_memory_utilization <= 1:
        raise UserError("--gpu-memory-utilization must be above 0 and at most 1.")
    numbers = ("max_model_len", "max_num_seqs", "prefix_cache_mib", "max_body_bytes", "max_queue", "timeout")
    for name in (*numbers, "drain_seconds"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0.")
    if args.vllm_url is not None and args.registry is not None:
        raise UserError("--registry compares log-probs with the learner's: it goes with an engine of our own.")
    for module in args.lora_modules:
        name, separator, path = module.partition("=")
        if not separator or not name or not path:
            raise UserError(f"--lora-modules {module}: write NAME=PATH.")


def _check_vllm(options: Mapping[str, tuple[object, object]]) -> None:
    """Refuse options, each with its default, that would be ignored."""
    for name, (value, default) in options.items():
        if value != default:
            option = name.replace("_", "-")
            raise UserError(f"--{option} is for an engine of our own; with --vllm-url leave it out and set it in vLLM.")


def _serve(args: argparse.Namespace) -> int:
    from practicum.engines.local.engine import LocalEngine
    from practicum.models.loader import resolve_device
    from practicum.serving.app import ModelServer
    from practicum.serving.served_models import ModelLoader
    from practicum.serving.server import LOOPBACK, listen, serve
    from practicum.serving.service import ClientLimits

    loader = ModelLoader(
        device=resolve_device(args.device, args.dtype),
        template=args.template,
        max_num_seqs=args.max_num_seqs,
        max_model_len=args.max_model_len,
        gpu_memory_utilization=args.gpu_memory_utilization,
        prefix_cache_bytes=None if args.prefix_cache_mib is None else args.prefix_cache_mib << 20,
    )
    keys = api_keys(args.api_key or (), os.environ)
    limits = ClientLimits(max_body_bytes=args.max_body_bytes, max_waiting=args.max_queue, seconds=args.timeout)
    listener = listen(args.host, args.port)

    async def main() -> None:
        follower = _follower(args, loader)
        models = await (_load_models(args, loader) if follower is None else follower.start(_names(args)[0]))
        try:
            await _add_names(args, models)
            await asyncio.sleep(0)  # Ctrl-C during the loading takes effect here
        except BaseException:
            await models.close()  # which unloads what was loaded into a vLLM server
            raise
        may_load = bool(keys) or args.host in LOOPBACK
        engine = models.default.engine
        max_batch = engine.max_batch if isinstance(engine, LocalEngine) else args.max_num_seqs or VLLM_REQUESTS
        server = ModelServer(models, limits, keys, may_load, max_batch, follower=follower)
        server.tokens_as_ids = args.return_tokens_as_token_ids
        address = f"[{args.host}]" if ":" in args.host else args.host
        names = ", ".join(model.name for model in models.list_models())
        print(f"http://{address}:{listener.getsockname()[1]}/v1  {names}  (Ctrl-C ends it)", flush=True)
        if args.host not in LOOPBACK and not keys:
            print("Everybody who can reach this machine can use these models; --api-key prevents it.", flush=True)
        await serve(server, listener, args.host, args.drain_seconds)

    asyncio.run(main())
    return 0


def api_keys(options: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The keys of --api-key and PRACTICUM_API_KEY; an empty one is refused: it would leave the server open."""
    keys = [*options, *([environment["PRACTICUM_API_KEY"]] if "PRACTICUM_API_KEY" in environment else [])]
    if not all(key.strip() for key in keys):
        raise UserError("An API key is empty; give --api-key and PRACTICUM_API_KEY a text, or leave them out.")
    return keys


def _names(args: argparse.Namespace) -> list[str]:
    return list(args.served_model_name or [args.model])


def _follower(args: argparse.Namespace, loader: ModelLoader) -> PromotionFollower | None:
    """What follows --registry; None without it."""
    if args.registry is None:
        if args.parity_episodes is not None:
            raise UserError("--parity-episodes goes with --registry.")
        return None
    from practicum.data.model_registry import ModelRegistry
    from practicum.serving.promotion import PromotionFollower

    return PromotionFollower(ModelRegistry(args.registry), args.model, loader, _stored_prompts(args.parity_episodes))


def _stored_prompts(folder: Path | None) -> list[tuple[int, ...]]:
    """The first prompts of stored episodes."""
    if folder is None:
        return []
    from practicum.data.store import read_episodes

    prompts = []
    for episode in read_episodes(folder):
        for sequence in episode.sequences()[:1]:
            length = next((index for index, sampled in enumerate(sequence.sampled) if sampled), 0)
            prompts += [sequence.ids[:length]] if length else []
    if not prompts:
        raise UserError(f"--parity-episodes {folder}: there is no episode with a prompt.")
    return prompts[:MAX_PARITY_PROMPTS]


async def _load_models(args: argparse.Namespace, loader: ModelLoader) -> ServedModels:
    """The model that the command names; of an adapter, its base model too."""
    from practicum.data.run_folder import resolve_model
    from practicum.serving.served_models import ServedModels

    ref, name = resolve_model(args.model), _names(args)[0]
    base_name = name if ref.adapter is None else ref.model
    if args.vllm_url is not None:
        models = loader.load_running_vllm(base_name, ref, args.vllm_url, os.environ.get("VLLM_API_KEY"))
    else:
        models = ServedModels(loader.load_base(base_name, ref))
    if ref.adapter is not None:
        await models.load_adapter(name, ref.adapter)
    return models


async def _add_names(args: argparse.Namespace, models: ServedModels) -> None:
    """Further names of the model, and adapters."""
    first, *aliases = _names(args)
    for alias in aliases:
        models.add_alias(alias, first)
    for module in args.lora_modules:
        name, _, path = module.partition("=")
        await models.load_adapter(name, path)
