"""The order in which SFT takes its samples."""

from __future__ import annotations

from practicum.training.sft import SFTSettings, plan_batches


def test_samples_of_a_task_are_learned_in_a_row_and_tasks_are_shuffled_in_every_epoch() -> None:
    tasks = [f"t{index // 3}" for index in range(30)]
    settings = SFTSettings(num_epochs=2, batch_size=6, gradient_accumulation_steps=1)
    batches = plan_batches(30, settings, tasks)
    epochs = [[index for batch in half for index in batch] for half in (batches[:5], batches[5:])]
    assert epochs[0] != epochs[1]
    for order in epochs:
        assert sorted(order) == list(range(30))
        assert [tasks[index] for index in order[::3]] == [tasks[index] for index in order[2::3]]
        assert order != sorted(order)


def test_without_tasks_every_sample_is_shuffled_by_itself() -> None:
    settings = SFTSettings(num_epochs=1, batch_size=5, gradient_accumulation_steps=2, seed=42)
    batches = plan_batches(12, settings)
    assert [len(batch) for batch in batches] == [10, 2]
    assert batches == [[9, 3, 6, 0, 7, 1, 4, 2, 11, 5], [8, 10]]  # the order of earlier versions
