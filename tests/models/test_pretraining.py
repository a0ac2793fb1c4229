"""Generated text for pretraining: the same for a seed, complete conversations; no packed document sees another."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from practicum.models import loader, tiny
from practicum.models.pretraining import data
from practicum.models.pretraining.kinds import KINDS

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import pretrain_tiny

LONGEST = 400


def test_text_is_the_same_for_a_seed_and_another_for_another_seed() -> None:
    tokenizer = tiny.build_tokenizer()

    def texts(seed: int) -> list[list[int]]:
        return [item.ids.tolist() for item in itertools.islice(data.documents(tokenizer, seed, LONGEST), 30)]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_conversations_whose_last_reply_is_trained(kind: str) -> None:
    tokenizer = tiny.build_tokenizer()
    for item in itertools.islice(data.documents(tokenizer, 3, LONGEST, [kind]), 20):
        text = tokenizer.decode(item.ids)
        assert text.count("<|im_start|>") == text.count("<|im_end|>") >= 2
        assert tokenizer.decode(item.ids[: item.answer_start]).endswith("<|im_start|>assistant\n")
        assert item.trained[item.answer_start : -1].all()
        assert not item.trained[0]


def test_text_is_that_of_the_chat_template() -> None:
    turns = [("system", "a"), ("user", "b c"), ("assistant", "d")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert data.render(turns) == tiny.build_tokenizer().apply_chat_template(messages, tokenize=False)


def test_packed_rows_hold_whole_documents() -> None:
    tokenizer = tiny.build_tokenizer()
    packed = data.pack(data.documents(tokenizer, 4, LONGEST), 8, 1024)
    expected = {tuple(item.ids) for item in itertools.islice(data.documents(tokenizer, 4, LONGEST), 400)}
    for ids, document in zip(packed.ids, packed.document, strict=True):
        for number in range(1, int(document.max()) + 1):
            assert tuple(ids[document == number]) in expected
    assert (packed.document > 0).mean() > 0.9


def test_the_loss_of_packed_rows_is_that_of_their_documents() -> None:
    model = tiny.build_model(len(tiny.build_tokenizer())).eval()
    packed = data.pack(data.documents(tiny.build_tokenizer(), 5, 200), 1, 512)
    rows = torch.from_numpy(np.stack([array.astype(np.int64) for array in packed], axis=1))
    with torch.no_grad():
        together = pretrain_tiny.loss_sum(model, *pretrain_tiny.prepare(rows, torch.float32)).item()
        alone = 0.0
        for number in range(1, int(packed.document.max()) + 1):
            document = rows[:, :, packed.document[0] == number]
            alone += pretrain_tiny.padded_loss_sum(model, document).item()
    assert packed.document.max() > 1
    assert together == pytest.approx(alone, rel=1e-5)


def test_training_on_a_cpu_lowers_the_loss_and_writes_a_model_folder(tmp_path: Path) -> None:
    model = tiny.build_model(len(tiny.build_tokenizer())).train()
    source = pretrain_tiny.PaddedDocuments(0, 128, 256)
    source.set_progress(0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(12):
        rows = source.batch()
        loss = pretrain_tiny.padded_loss_sum(model, rows) / rows[:, 2, 1:].sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.5
    pretrain_tiny.save(model, tmp_path / "model")
    loaded = loader.load(str(tmp_path / "model"))
    assert torch.equal(loaded.model.lm_head.weight, model.lm_head.weight.to(torch.bfloat16).float())


def test_the_shipped_weights_copy_what_the_prompt_says() -> None:
    loaded = loader.load("tiny-pretrained")
    kinds = ("repeat", "dialogue", "expression", "chain", "follow_goal")
    accuracy = pretrain_tiny.accuracies(loaded.model, "cpu", 24, kinds)
    assert {kind for kind in kinds if accuracy[kind]["tokens"] < 0.9} == set()
    untrained = pretrain_tiny.accuracies(loader.load("tiny").model, "cpu", 24, kinds)
    assert all(untrained[kind]["tokens"] < 0.2 for kind in kinds)
