#!/usr/bin/env bash
# From demonstrations to a report with an environment of one's own (shop.py): base, SFT, and RL at two learning rates,
# the second of which is too high: success falls to 0 within four steps.
#   bash docs/examples/shop.sh runs/shop
set -euo pipefail
OUT=${1:-runs/shop}
HERE=$(cd "$(dirname "$0")" && pwd)
run() { ${PRACTICUM:-practicum} "$@"; }
ENV=(--env "$HERE/shop.py:Shop")
PLAY=(--max-turns 10 --max-tokens 40)
RL=(agent.environment="$HERE/shop.py:Shop" agent.max_turns=10 agent.max_tokens_per_turn=40 agent.num_chains=8
  algorithm.adv_estimator=grpo data.train_batch_size="${GROUPS_OF_A_STEP:-16}" data.val_batch_size=120
  actor_rollout_ref.model.path="$OUT/sft" actor_rollout_ref.actor.use_kl_loss=false actor_rollout_ref.actor.entropy_coeff=0
  actor_rollout_ref.actor.optim.lr_warmup_steps=5 actor_rollout_ref.rollout.max_num_seqs=128 trainer.test_freq=10
  trainer.total_training_steps="${RL_STEPS:-40}" trainer.default_local_dir="$OUT" trainer.project_name=training)

run collect "${ENV[@]}" "${PLAY[@]}" --policy expert --tasks "${DEMONSTRATIONS:-150}" --out "$OUT" --experiment demonstrations --run-id expert
run sft --episodes "$OUT/demonstrations" --model tiny-pretrained --full --epochs "${EPOCHS:-12}" --batch-size 8 \
  --gradient-accumulation-steps 1 --lr 1e-3 --warmup 20 --out "$OUT/sft" training.bf16=false training.weight_decay=1.0
run train "${RL[@]}" actor_rollout_ref.actor.optim.lr=3e-5 trainer.experiment_name=rl
run train "${RL[@]}" actor_rollout_ref.actor.optim.lr="${HIGH_RATE:-1e-3}" trainer.experiment_name=rl-high-rate
for stage in base sft rl rl-high-rate; do
  case $stage in base) policy=tiny-pretrained ;; sft) policy=$OUT/sft ;; *) policy=$OUT/training/$stage ;; esac
  run eval "${ENV[@]}" "${PLAY[@]}" --policy "$policy" --tasks "${TASKS:-300}" --out "$OUT/results/$stage.json"
done
run report "$OUT" -o "$OUT/report.html"
