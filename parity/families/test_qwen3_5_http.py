"""Qwen3.5 over HTTP with the official client: a tiny checkpoint by its path, as a deployment would serve a real one."""

from __future__ import annotations

import json
from contextlib import ExitStack

import httpx
import openai
import pytest

from models.qwen3_5.tests import tiny
from perf.launch import running, toolkit

KEY = "qwen3_5_0p8b"
USER = [{"role": "user", "content": "The quick brown fox?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "integer"}},
    "required": ["days"],
    "additionalProperties": False,
}
TORN_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
TORN = [*USER, {"role": "assistant", "content": None, "tool_calls": [TORN_CALL]}]
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture(scope="module")
def deployments(tmp_path_factory):
    """Two deployments of one checkpoint: with pages that short prompts fill, and with pages that they do not."""
    folder = tmp_path_factory.mktemp("served")
    checkpoint = tiny.save(folder / "checkpoint")
    made = {}
    for name, page in (("kept", 8), ("plain", 1024)):
        made[name] = folder / f"{name}.yaml"
        asked = {"model": KEY, "numerics": "invariant", "weights": str(checkpoint), "max_concurrent_requests": 4}
        asked |= {"options": {"context": 1024}, "resources": {"kv": {"page_size": page}}}
        made[name].write_text(json.dumps(asked))
    return made


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """The address of a deployment's server, which runs until the module's tests are done."""
    addresses = {}
    with ExitStack() as stack:

        def start(path):
            if path not in addresses:
                launch = toolkit(str(path), "--experimental")
                server = stack.enter_context(running(launch, tmp_path_factory.mktemp("logs")))
                addresses[path] = server.target.url
            return addresses[path]

        yield start


@pytest.fixture
def url(deployments, serve):
    return serve(deployments["kept"])


@pytest.fixture
def sdk(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(sdk, messages=USER, **fields):
    return sdk.chat.completions.create(model=KEY, messages=messages, seed=3, **{"max_tokens": 24, **fields})


def test_an_answer_and_its_stream_are_the_same(key, sdk):
    whole = ask(sdk, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True})
    chunks = list(ask(sdk, stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=2))
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(one.delta.content or "" for one in deltas) == whole.choices[0].message.content
    assert deltas[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.prompt_tokens == len(whole.prompt_token_ids)
    told = [one for delta in deltas if delta.logprobs for one in delta.logprobs.content]
    assert [(t.token, t.logprob) for t in told] == [(t.token, t.logprob) for t in whole.choices[0].logprobs.content]
    assert all(len(one.top_logprobs) == 2 for one in told)


def test_the_template_is_asked_to_think_or_not(key, sdk):
    plain, thinking, not_thinking = (
        ask(sdk, extra_body={"return_token_ids": True, **({} if on is None else {"enable_thinking": on})})
        for on in (None, True, False)
    )
    assert plain.prompt_token_ids < thinking.prompt_token_ids
    assert len(not_thinking.prompt_token_ids) > len(thinking.prompt_token_ids)
    assert thinking.choices[0].message.reasoning_content
    assert not getattr(plain.choices[0].message, "reasoning_content", None)


def test_answers_keep_to_a_schema_and_to_a_tool(key, sdk):
    shape = {"type": "json_schema", "json_schema": {"name": "days", "schema": SCHEMA}}
    found = ask(sdk, response_format=shape, max_tokens=200, temperature=1.0)
    if found.choices[0].finish_reason == "stop":
        assert set(json.loads(found.choices[0].message.content)) == {"days"}
    called = ask(sdk, tools=[TOOL], tool_choice="required", max_tokens=400, temperature=1.0)
    assert called.choices[0].finish_reason == "tool_calls"
    (call, *_) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}
    said = [*USER, called.choices[0].message.model_dump(exclude_none=True)]
    said.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    assert ask(sdk, said, tools=[TOOL]).usage.prompt_tokens > called.usage.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 5000}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "fox " * 1100}]}, "messages"),
        ({"messages": TORN}, "messages.tool_calls"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"extra_body": {"min_p": 2}}, "min_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"extra_body": {"enable_thought": True}}, "enable_thought"),
    ],
)
def test_a_clients_mistake_is_named(key, sdk, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(sdk, **fields)
    assert caught.value.param == param


def conversation(url, turns):
    """The answers of a conversation that grows, and how many tokens of its prompts were not computed again."""
    messages, said, reused = [], [], []
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk:
        for turn in range(turns):
            messages.append({"role": "user", "content": f"fox {turn}?"})
            found = ask(sdk, messages, temperature=0, max_tokens=8, extra_body={"ignore_eos": True})
            said.append(found.choices[0].message.content)
            messages.append({"role": "assistant", "content": said[-1]})
            reused.append(found.usage.prompt_tokens_details.cached_tokens)
    return said, reused


def test_a_conversation_of_twenty_turns_reuses_what_it_said(key, url, deployments, serve):
    said, reused = conversation(url, 20)
    expected, nothing = conversation(serve(deployments["plain"]), 20)
    assert said == expected
    assert nothing == [0] * 20
    assert reused == sorted(reused)
    assert reused[-1] > 200
    lines = httpx.get(url + "/metrics").text.splitlines()
    counted = [float(line.split()[-1]) for line in lines if "reused" in line and KEY in line]
    assert counted
    assert counted[0] >= sum(reused)
