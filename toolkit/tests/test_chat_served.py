"""A chat port behind the real engine and the real route: constrained, streamed, stopped, counted."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import jsonschema
import numpy as np
import openai
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel, Field
from schemathesis import GenerationMode

from models.components.text.tests import port, words
from serving.api import build_app
from serving.api.tests.fake import live, wait_for
from serving.settings import ServerSettings

PATH = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
BAD = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}
JSON = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


def app_of(rows=4):
    return build_app([port.loaded(rows)], ServerSettings())


@asynccontextmanager
async def served(rows=4):
    app = app_of(rows)
    async with app.router.lifespan_context(app):
        await app.state.starting
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://parrot") as http:
            yield http
            stats = app.state.api.engine.stats()
            assert stats["requests"] == 0


def body(**fields):
    return {"model": "parrot", "messages": [{"role": "user", "content": "Hello"}], "seed": 5, **fields}


async def whole(http, **fields):
    response = await http.post(PATH, json=body(**fields))
    assert response.status_code == 200, response.text
    return response.json()


async def streamed(http, **fields):
    """The chunks of a stream, put together as clients do: message, choice, usage."""
    fields |= {"stream": True, "stream_options": {"include_usage": True}}
    response = await http.post(PATH, json=body(**fields))
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    message = {"content": "", "reasoning_content": ""}
    made = {"message": message, "finish_reason": None, "logprobs": [], "token_ids": [], "tool_calls": []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        for name in message:
            message[name] += choice["delta"].get(name, "")
        made["tool_calls"] += choice["delta"].get("tool_calls", ())
        made["finish_reason"] = choice["finish_reason"] or made["finish_reason"]
        made["logprobs"] += (choice["logprobs"] or {}).get("content", ())
        made["token_ids"] += choice.get("token_ids", ())
    return made, chunks[-1]["usage"]


async def test_json_under_a_schema_always_validates_and_other_rows_are_not_touched():
    async with served() as http:
        free = await whole(http, max_tokens=60)
        asked = [whole(http, response_format=JSON, seed=seed, max_tokens=150) for seed in range(12)]
        asked += [whole(http, max_tokens=60)]
        *made, among = [one["choices"][0] for one in await asyncio.gather(*asked)]
    assert among["message"] == free["choices"][0]["message"]
    for choice in made:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    assert len({choice["message"]["content"] for choice in made}) > 6


async def test_any_object_and_thoughts_before_it():
    async with served() as http:
        made = await whole(http, response_format={"type": "json_object"}, temperature=0.5, max_tokens=200)
        thought = await whole(http, response_format=JSON, enable_thinking=True, max_tokens=2000, seed=1)
    assert made["choices"][0]["finish_reason"] == "length" or json.loads(made["choices"][0]["message"]["content"])
    message = thought["choices"][0]["message"]
    if thought["choices"][0]["finish_reason"] == "stop":
        jsonschema.validate(json.loads(message["content"]), SCHEMA)
    assert message["reasoning_content"]


async def test_a_call_that_must_be_made_is_made():
    async with served() as http:
        for choice in ("required", {"type": "function", "function": {"name": "add"}}):
            fields = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 300}
            made = (await whole(http, **fields))["choices"][0]
            again, _ = await streamed(http, **fields)
            (call,) = made["message"]["tool_calls"]
            assert (call["function"]["name"], made["finish_reason"]) == ("add", "tool_calls")
            jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
            assert made["message"]["content"] is None
            assert again["tool_calls"][0]["function"] == call["function"]
            assert again["message"]["content"] == ""


@pytest.mark.parametrize("fields", [{}, {"stop": ["e", "zz"]}, {"max_tokens": 5}, {"temperature": 0.3, "top_p": 0.9}])
async def test_a_stream_is_the_whole_answer(fields):
    fields = {"max_tokens": 50, **fields, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    async with served() as http:
        made = await whole(http, **fields)
        again, usage = await streamed(http, **fields)
    choice = made["choices"][0]
    text = choice["message"]["content"]
    assert again["message"]["content"] == text
    assert (again["finish_reason"], usage) == (choice["finish_reason"], made["usage"])
    assert (again["token_ids"], again["logprobs"]) == (choice["token_ids"], choice["logprobs"]["content"])
    assert usage["completion_tokens"] == len(choice["token_ids"])
    assert usage["prompt_tokens"] == len(made["prompt_token_ids"])
    spoken = bytes(byte for token in choice["logprobs"]["content"] for byte in token["bytes"])
    assert spoken.decode(errors="replace").startswith(text)
    assert not any(stop in text for stop in fields.get("stop", ()))
    if choice["finish_reason"] == "length":
        assert usage["completion_tokens"] == fields["max_tokens"]
        assert text == words.tokenizer().decode(choice["token_ids"])


async def test_greedy_takes_the_likeliest_and_bias_and_penalties_change_it():
    async with served() as http:
        fields = {"temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
        plain = (await whole(http, **fields))["choices"][0]
        for token in plain["logprobs"]["content"]:
            assert token["logprob"] == token["top_logprobs"][0]["logprob"] <= 0
        first = plain["token_ids"][0]
        banned = (await whole(http, **fields, logit_bias={str(first): -100}))["choices"][0]
        forced = (await whole(http, **fields, logit_bias={"70": 100}))["choices"][0]
        fresh = (await whole(http, **{**fields, "max_tokens": 60}, presence_penalty=2.0, frequency_penalty=2.0))[
            "choices"
        ][0]
        same = (await whole(http, **{**fields, "max_tokens": 60}))["choices"][0]
    assert first not in banned["token_ids"]
    assert set(forced["token_ids"]) == {70}
    assert len(set(fresh["token_ids"])) > len(set(same["token_ids"]))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": BAD}, "response_format"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"logit_bias": {"1": 200}}, "logit_bias.1"),
        ({"enable_thnking": True}, "enable_thnking"),
    ],
)
async def test_what_cannot_be_kept_to_is_refused(fields, param):
    async with served() as http:
        response = await http.post(PATH, json=body(**fields))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert error["message"]


async def generated(http, **fields):
    response = await http.post("/generate", json={"model": "parrot", "text": "Hello", "seed": 5, **fields})
    assert response.status_code == 200, response.text
    deltas = response.json()["outputs"]["text"]
    return "".join(d["text"] for d in deltas), [one for d in deltas for one in d["logprobs"]], response.json()["info"]


async def test_generate_goes_on_with_a_text_and_tells_what_its_choice_saw():
    asked = {"max_tokens": 20, "top_k": 1, "return_logprobs": True, "top_logprobs": 2}
    async with served() as http:
        text, none, info = await generated(http, max_tokens=20)
        greedy, raw, _ = await generated(http, **asked)
        same, processed, _ = await generated(http, **asked, logprobs_mode="processed")
    assert (none, info["output_tokens"]) == ([], 20)
    assert text != greedy == same
    assert all(one["logprob"] < -0.01 for one in raw)
    assert all(one["logprob"] == 0 for one in processed), "of one token that is left"
    assert [one["id"] for one in raw] == [one["top"][0]["id"] for one in raw]
    assert bytes(byte for one in raw for byte in one["data"]).decode(errors="replace") == greedy


def test_the_openai_client_parses_and_calls():
    with live(app_of()) as url, openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as sdk:
        messages = [{"role": "user", "content": "Hello"}]
        asked = {"model": "parrot", "messages": messages, "seed": 3, "max_tokens": 200}
        made = sdk.chat.completions.create(**asked, response_format=JSON)
        jsonschema.validate(json.loads(made.choices[0].message.content), SCHEMA)
        called = sdk.chat.completions.create(**asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        (call,) = called.choices[0].message.tool_calls
        messages = [*messages, called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        after = sdk.chat.completions.create(**asked | {"messages": messages}, tools=[TOOL])
        assert after.usage.prompt_tokens > made.usage.prompt_tokens
        with sdk.chat.completions.stream(**asked, response_format=JSON) as events:
            for _ in events:
                pass
            final = events.get_final_completion()
        assert final.choices[0].message.content == made.choices[0].message.content
        many = sdk.chat.completions.create(**asked, n=2, stream=True)
        assert {choice.index for chunk in many for choice in chunk.choices} == {0, 1}


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.nightly)])
async def test_clients_that_leave_at_random_moments_leave_nothing(count):
    """Over real sockets: whole and streamed, one and several choices, free and constrained."""
    draw, app, statuses = random.Random(0), app_of(), []

    async def one(http):
        fields = {"n": draw.choice([1, 1, 3]), "stream": draw.random() < 0.6, "max_tokens": draw.choice([1, 30, 200])}
        fields |= {"response_format": JSON} if draw.random() < 0.3 else {}
        try:
            async with asyncio.timeout(draw.choice([0.001, 0.01, 0.03, 0.1, 0.3, 20.0])):
                return (await http.post(PATH, json=body(seed=draw.randrange(99), **fields))).status_code
        except TimeoutError:
            return None

    with live(app) as url:
        engine = app.state.api.engine
        async with httpx.AsyncClient(base_url=url) as http:
            while len(statuses) < count:
                statuses += await asyncio.gather(*(one(http) for _ in range(6)))
            wait_for(lambda: app.state.api.seats.taken == 0 and engine.stats()["requests"] == 0, 10)
            assert (await http.post(PATH, json=body(max_tokens=3))).status_code == 200
        assert engine.stats()["free_slots"] == {"parrot": 4}
    assert set(statuses) <= {None, 200}
    assert None in statuses
    assert 200 in statuses


async def test_a_device_that_is_gone_ends_the_stream_in_band_and_readiness_for_good():
    model = port.loaded()
    node = model.model.graph.nodes["lm"]
    launch, steps = node.launch, iter(range(1000))

    def breaks(b):
        if b.n and next(steps) > 5:
            raise torch.AcceleratorError("the device fell off")
        return launch(b)

    app = build_app([model], ServerSettings())
    with live(app) as url:
        node.launch = breaks
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/health/ready")).status_code == 200
            asked = [http.post(PATH, json=body(stream=stream, logit_bias={"70": 100})) for stream in (True, False)]
            streamed, whole = await asyncio.gather(*asked)
            last = streamed.text.strip().splitlines()[-1].removeprefix("data: ")
            assert json.loads(last)["error"]["code"] in {"engine_dead", "step_failed"}
            assert "[DONE]" not in streamed.text
            assert whole.status_code in {500, 503}
            wait_for(lambda: app.state.api.engine.state == "dead")
            for _ in range(3):
                ready, refused = await http.get("/health/ready"), await http.post(PATH, json=body())
                assert (ready.status_code, refused.status_code) == (503, 503)
                assert refused.json()["error"]["code"] == "engine_dead"
                assert "fell off" in refused.json()["error"]["message"]
            assert (await http.get("/health/live")).status_code == 200
            assert "toolkit_ready 0.0" in (await http.get("/metrics")).text
    assert app.state.api.seats.taken == 0


class Thing(BaseModel):
    """What a caller wants to have parsed."""

    name: Annotated[str, Field(max_length=8)]
    count: Annotated[int, Field(ge=0, le=99)]


def test_the_openai_client_parses_into_classes_and_streams_them():
    with live(app_of()) as url, openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as sdk:
        asked = {"model": "parrot", "messages": [{"role": "user", "content": "Hello"}], "seed": 3, "max_tokens": 300}
        parsed = sdk.chat.completions.parse(**asked, response_format=Thing)
        assert isinstance(parsed.choices[0].message.parsed, Thing)
        with sdk.chat.completions.stream(**asked, response_format=Thing) as events:
            kinds = {event.type for event in events}
            assert events.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
        assert {"chunk", "content.delta", "content.done"} <= kinds
        tool = openai.pydantic_function_tool(Thing, name="keep")
        called = sdk.chat.completions.parse(**asked, tools=[tool], tool_choice="required", parallel_tool_calls=False)
        assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Thing)


async def test_the_async_openai_client_streams():
    with live(app_of()) as url:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as sdk:
            asked = {"model": "parrot", "messages": [{"role": "user", "content": "Hello"}], "seed": 3, "max_tokens": 20}
            made = await sdk.chat.completions.create(**asked)
            stream = await sdk.chat.completions.create(**asked, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == made.choices[0].message.content
            async with sdk.chat.completions.stream(**asked) as events:
                final = await events.get_final_completion()
            assert final.choices[0].message.content == text


@pytest.mark.parametrize("examples", [15, pytest.param(1000, marks=pytest.mark.nightly)])
def test_no_request_breaks_a_chat_model(examples):
    """Whatever the page of a model with every knob allows, and what it does not: no 5xx, and nothing stays."""
    app = app_of()
    with live(app) as url:
        operation = schemathesis.openapi.from_url(url + "/openapi.json")[PATH]["POST"]
        allowed = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        forbidden = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

        @given(case=allowed | forbidden)
        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def asked(case):
            response = case.call()
            assert response.status_code < 500, (response.status_code, response.text, case.as_curl_command())

        asked()
        wait_for(lambda: app.state.api.engine.stats()["requests"] == 0)
        assert app.state.api.seats.taken == 0


def test_the_table_has_no_token_that_says_nothing():
    parrot = port.Parrot()
    assert np.isfinite(parrot.graph.nodes["lm"].table[:, words.end()].numpy()).all()
