"""The port's parts around the network: prompts, log-probabilities, plain text, ends, and what clients may not ask."""

from __future__ import annotations

import asyncio

import pytest
import torch

from models.components.text.conversation import ChatTokenizer, plain
from models.components.text.tests import words
from models.qwen3_5.request import QwenChatKnobs, QwenTextKnobs
from models.qwen3_5.tests import tiny
from models.qwen3_5.tests.running import answer, answered, engine_of, user
from serving.core.contract import Task
from serving.errors import BadRequest

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "The quick "}, {"type": "text", "text": "fox?"}]},
]
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def port(folder):
    return tiny.port(folder)


@pytest.fixture(scope="module")
def chat(folder):
    return ChatTokenizer(folder)


def test_a_prompt_is_the_template_with_a_mark_behind_each_message(chat):
    prompt = chat.prompt(MESSAGES, ())
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nThe quick fox?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.ids.tolist() == chat.encode(text)
    assert [prompt.ids[mark - 1] for mark in prompt.marks] == [chat.end] * 2
    assert not prompt.thinking


def test_a_conversation_goes_on_from_its_own_prompt(chat):
    before = chat.prompt(MESSAGES, ())
    after = chat.prompt([*MESSAGES, {"role": "assistant", "content": "Yes."}, *user("And?")], ())
    assert after.ids[: len(before.ids)].tolist() == before.ids.tolist()
    assert after.marks[:2] == before.marks


@pytest.mark.parametrize(("thinking", "opened"), [(True, True), (False, False)])
def test_the_template_opens_a_thought_or_closes_it(chat, thinking, opened):
    assert chat.prompt(user("?"), (), enable_thinking=thinking).thinking is opened


def test_messages_become_what_templates_read():
    assert plain({"role": "developer", "content": "x", "name": None}) == {"role": "system", "content": "x"}
    assert plain({"role": "assistant", "content": None, "tool_calls": [CALL]}) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": {"city": "Paris"}}}],
    }


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "stranger", "content": "x"}], "no role stranger"),
        ([{"role": "user", "content": [{"type": "image", "image": None}]}], "no image"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{"}}]}], "no JSON"),
    ],
)
def test_messages_that_no_template_takes_are_refused(chat, messages, said):
    with pytest.raises(BadRequest, match=said):
        chat.prompt(messages, ())


def reference_logits(port, ids):
    model = tiny.reference()
    return model(torch.tensor([ids])).logits[0]


def test_log_probabilities_are_the_models_or_those_drawn_from(port):
    knobs = {"logprobs": True, "top_logprobs": 3, "temperature": 0.5, "top_k": 2}
    raw, processed = (answered(port, [user("?")], logprobs_mode=mode, **knobs)[0] for mode in ("raw", "processed"))
    assert raw.ids == processed.ids
    prompt = port.tokenizer.prompt(user("?"), ()).ids.tolist()
    logits = reference_logits(port, [*prompt, *raw.ids])[len(prompt) - 1 : -1]
    cut = logits.masked_fill(logits < logits.topk(2).values[:, -1:], -torch.inf) / 0.5
    places = [
        i for i, token in enumerate(raw.ids) if port.vocabulary.pieces[token]
    ]  # what shows nothing is not told of
    assert len(places) >= len(raw.logprobs) > 2
    for found, told in ((raw, logits.log_softmax(-1)), (processed, cut.log_softmax(-1))):
        rows = iter(places)
        for one in found.logprobs:
            row = next(i for i in rows if raw.ids[i] == one.id)
            assert one.logprob == pytest.approx(float(told[row, one.id]), abs=1e-4)
            likeliest = told[row].topk(3 if found is raw else 2)
            assert [top.id for top in one.top] == likeliest.indices.tolist()
            assert [top.logprob for top in one.top] == pytest.approx(likeliest.values.tolist(), abs=1e-4)


def test_an_end_token_ends_an_answer_and_is_not_text(port):
    (free,) = answered(port, [user("fox")], max_tokens=12)
    bias = {"logit_bias": {str(words.end()): 100}}
    (ended,) = answered(port, [user("fox")], ignore_eos=False, max_tokens=12, **bias)
    assert (ended.ids, ended.text, ended.info["finish_reason"]) == ([words.end()], "", "stop")
    stop = free.text[2:4]
    (cut,) = answered(port, [user("fox")], stop=stop, max_tokens=12)
    assert (cut.text, cut.info["finish_reason"]) == (free.text[: free.text.index(stop)], "stop")
    assert free.info["finish_reason"] == "length"


def test_plain_text_goes_on_without_a_template(port):
    async def run():
        engine = engine_of(port)
        await engine.start()
        try:
            fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            task = Task("generate", {"text": "The quick brown"}, QwenTextKnobs(**fields))
            outputs = [o async for o in await engine.submit(tiny.CARD.key, task, request_id="text")]
            return [token for o in outputs if o.port == "text" for token in o.value.token_ids], outputs[-1].value
        finally:
            await engine.stop()

    said, info = asyncio.run(run())
    ids = info["prompt_token_ids"]
    assert ids == words.encode("The quick brown")
    for token in said:
        assert reference_logits(port, ids)[-1].argmax() == token
        ids = [*ids, token]


@pytest.mark.parametrize(
    ("kind", "inputs", "knobs", "param"),
    [
        ("chat", {"messages": user("fox " * 600)}, QwenChatKnobs(), "messages"),
        ("chat", {"messages": user("fox")}, QwenChatKnobs(max_tokens=511), "max_tokens"),
        ("chat", {"messages": user("fox")}, QwenChatKnobs(logit_bias={"448": 1}), "logit_bias"),
        ("generate", {"text": ""}, QwenTextKnobs(), "text"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_the_engine(port, kind, inputs, knobs, param):
    with pytest.raises(BadRequest) as caught:
        port.prepare(Task(kind, inputs, knobs))
    assert caught.value.param == param


async def test_rows_leave_and_come_while_others_speak(port):
    """Prompts arrive in the middle of others' answers: steps are mixed, and nobody's answer changes."""
    engine = engine_of(port)
    await engine.start()
    try:
        texts = ("a fox", "the dog", "quick")
        alone = [(await answer(engine, user(text), f"alone {text}", max_tokens=24)).ids for text in texts]
        before = engine.stats()["steps"][f"{tiny.CARD.key}.decoder"]

        async def late(text, seconds):
            await asyncio.sleep(seconds)
            return (await answer(engine, user(text), text, max_tokens=24)).ids

        assert await asyncio.gather(late("a fox", 0), late("the dog", 0.01), late("quick", 0.02)) == alone
        steps = engine.stats()["steps"][f"{tiny.CARD.key}.decoder"] - before
        assert steps < before, "they shared steps"
    finally:
        await engine.stop()
