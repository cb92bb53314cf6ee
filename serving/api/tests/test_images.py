"""`/v1/images/generations`, `/v1/images/edits`, `/v1/videos/generations`."""

from __future__ import annotations

import base64
import io

import numpy as np
import openai
import pytest
from PIL import Image

from serving.api.media.images import decode_image, from_base64, from_data_url
from serving.api.tests.fake import FakeEngine, Out, client, live, make_app
from serving.errors import BadRequest, StepFailed, TooLarge
from serving.settings import Limits

MAKE, EDIT, FILM = "/v1/images/generations", "/v1/images/edits", "/v1/videos/generations"
FRAMES = np.random.default_rng(0).integers(0, 255, (5, 16, 24, 3), dtype=np.uint8)
PIXELS = FRAMES[0]


def painting(task):
    return [Out("video", FRAMES[:2]), Out("video", FRAMES[2:])] if task.kind == "video" else [Out("image", PIXELS)]


def app_of(script=painting, keys=("painter", "sketcher", "filmer"), **settings):
    return make_app(FakeEngine(script), keys=keys, **settings)


def file_of(pixels=PIXELS, fmt="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, fmt)
    return buffer.getvalue()


def opened(item):
    return Image.open(io.BytesIO(base64.b64decode(item["b64_json"])))


@pytest.mark.parametrize("fmt", ["png", "jpeg", "webp"])
async def test_pictures_come_in_the_format_asked_for(fmt):
    app, engine = app_of()
    fields = {"model": "painter", "prompt": "a cat", "n": 2, "size": "32x16", "seed": 4, "output_format": fmt}
    async with client(app) as http:
        made = (await http.post(MAKE, json=fields)).json()
    assert [opened(item).format for item in made["data"]] == [fmt.upper()] * 2
    if fmt == "png":
        np.testing.assert_array_equal(np.asarray(opened(made["data"][0])), PIXELS)
    knobs = engine.submitted[0].task.knobs
    assert (knobs.width, knobs.height) == (32, 16)
    assert sorted(handle.seed for handle in engine.submitted) == [4, 5]
    assert engine.submitted[0].task.inputs["text"] == "a cat"


async def test_edits_get_every_picture_and_the_mask():
    app, engine = app_of()
    files = [("image[]", ("a.png", file_of())), ("image[]", ("b.png", file_of(PIXELS[:8]))), ("mask", file_of())]
    async with client(app) as http:
        response = await http.post(EDIT, files=files, data={"model": "painter", "prompt": "a dog", "steps": "3"})
    assert response.status_code == 200, response.text
    inputs = engine.submitted[0].task.inputs
    assert [image.shape for image in inputs["images"]] == [(16, 24, 3), (8, 24, 3)]
    assert inputs["mask"].shape == (16, 24)
    assert engine.submitted[0].task.knobs.steps == 3


@pytest.mark.parametrize("as_form", [False, True])
async def test_films_take_json_and_forms(as_form):
    app, engine = app_of()
    fields = {"model": "filmer", "prompt": "rain", "output_format": "webp", "size": "32x16"}
    async with client(app) as http:
        if as_form:
            response = await http.post(FILM, data=fields, files={"image": ("a.png", file_of())})
        else:
            url = "data:image/png;base64," + base64.b64encode(file_of()).decode()
            response = await http.post(FILM, json={**fields, "image": url})
    film = opened(response.json()["data"][0])
    assert (film.format, film.n_frames) == ("WEBP", 5)
    film.seek(4)
    np.testing.assert_array_equal(np.asarray(film.convert("RGB")), FRAMES[4])
    np.testing.assert_array_equal(engine.submitted[0].task.inputs["images"][0], PIXELS)


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        (MAKE, {"prompt": ""}, "prompt", "at least 1"),
        (MAKE, {"prompt": None}, "prompt", "must provide"),
        (MAKE, {"n": 0}, "n", "nearest valid value is 1"),
        (MAKE, {"n": 11}, "n", "at most 10"),
        (MAKE, {"size": "big"}, "size", "WIDTHxHEIGHT"),
        (MAKE, {"size": "100000x10000"}, "size", "at most"),
        (MAKE, {"size": "20x16"}, "width", "multiple of 8"),
        (MAKE, {"size": "16x16", "model": "sketcher"}, "size", "not supported"),
        (MAKE, {"response_format": "url"}, "response_format", "b64_json"),
        (MAKE, {"output_format": "svg"}, "output_format", "png"),
        (MAKE, {"stream": True}, "stream", "not supported"),
        (MAKE, {"steps": 51}, "steps", "nearest valid value is 50"),
        (MAKE, {"stps": 5}, "stps", 'Did you mean "steps"'),
        (MAKE, {"model": "filmer"}, "model", "painter, sketcher"),
        (FILM, {"size": "16x8"}, "size", "16x16"),
        (FILM, {"image": "http://10.0.0.1/a.png"}, "image", "data URL"),
        (FILM, {"image": "data:image/png;base64,@@"}, "image", "base64"),
        (FILM, {"image": "/etc/passwd"}, "image", "data URL"),
        (FILM, {"num_frames": 34}, "num_frames", "nearest valid value is 33"),
        (FILM, {"fps": 5e-324}, "fps", "0.1 to 240"),
    ],
)
async def test_a_bad_field_is_a_400_that_says_why(path, fields, param, says):
    app, engine = app_of()
    good = {"model": "filmer" if path == FILM else "painter", "prompt": "x", "output_format": "webp"}
    async with client(app) as http:
        response = await http.post(path, json={**good, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert says in error["message"]
    assert not engine.submitted


async def test_a_model_of_text_alone_edits_nothing():
    app, engine = app_of()
    async with client(app) as http:
        data, files = {"model": "sketcher", "prompt": "x"}, {"image": file_of()}
        response = await http.post(EDIT, data=data, files=files)
    async with client(app_of(keys=("sketcher",))[0]) as http:
        unserved = await http.post(EDIT, data=data, files=files)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_model")
    assert (unserved.status_code, unserved.json()["error"]["code"]) == (404, "route_not_served")
    assert "painter" in unserved.json()["error"]["message"]
    assert not engine.submitted


async def test_one_of_n_that_fails_fails_the_request_and_frees_the_rest():
    outcomes = iter([[Out("image", PIXELS)], [StepFailed("node raised")], [Out("image", PIXELS)]])
    app, engine = app_of(lambda task: next(outcomes))
    async with client(app) as http:
        response = await http.post(MAKE, json={"model": "painter", "prompt": "x", "n": 3})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "step_failed")
    assert not engine.running


def test_mp4_has_every_frame():
    import av

    from serving.api.media.images import encode_video

    with av.open(io.BytesIO(encode_video(FRAMES, 8.0, "mp4"))) as film:
        stream = film.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(stream)]
        assert (len(frames), frames[0].shape, stream.average_rate) == (5, (16, 24, 3), 8)


def test_mp4_without_pyav_is_refused_with_the_hint(monkeypatch):
    from serving.api.media.images import check_video

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="pip install"):
        check_video("mp4", 8.0)


@pytest.mark.parametrize("data", [b"", b"not a picture", file_of()[:40], b"\x89PNG\r\n\x1a\n" + bytes(50)])
def test_a_bad_picture_is_a_400(data):
    with pytest.raises(BadRequest) as error:
        decode_image(io.BytesIO(data), Limits(), "image")
    assert error.value.code == "invalid_image"


def test_a_large_picture_is_a_413_before_it_is_read():
    with pytest.raises(TooLarge, match="24 x 16"):
        decode_image(io.BytesIO(file_of()), Limits(image_pixels=100), "image")


@pytest.mark.parametrize("text", ["", "a", "YWJj!", "YWJj\nYWJj", "YWI", "data:,x", "ftp://x", "data:image/png,abc"])
def test_base64_and_data_urls_are_strict(text):
    with pytest.raises(BadRequest):
        from_base64(text, "image")
    with pytest.raises(BadRequest):
        from_data_url(text, "image")
    assert from_data_url("data:image/png;base64,YWJj", "image") == from_base64("YWJj", "image") == b"abc"


def test_the_openai_client_paints_and_edits():
    app, _ = app_of()
    with live(app) as url, openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as sdk:
        made = sdk.images.generate(model="painter", prompt="a cat", size="16x16", response_format="b64_json")
        np.testing.assert_array_equal(np.asarray(opened({"b64_json": made.data[0].b64_json})), PIXELS)
        edited = sdk.images.edit(model="painter", prompt="a dog", image=[("a.png", file_of()), ("b.png", file_of())])
        assert len(edited.data) == 1
