"""Films: MP4 and WebM by PyAV, animated GIF and WebP by Pillow; their size is bounded as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageSequence, UnidentifiedImageError

from serving.api.media.optional import pyav
from serving.core.contract import Video
from serving.errors import BadRequest, TooLarge
from serving.settings import Limits

ANIMATIONS = ("GIF", "WEBP")
DEFAULT_RATE = 10.0  # of an animation that does not say, as browsers play it


def decode_video(file: BinaryIO, limits: Limits, param: str) -> Video:
    """A film's pictures, all of one size, and their rate. Sound in it is left aside."""
    file.seek(0)
    try:
        with Image.open(file, formats=ANIMATIONS) as image:
            return _animation(image, limits, param)
    except UnidentifiedImageError:
        pass
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unreadable(param, str(error)) from None
    file.seek(0)
    return _film(file, limits, param)


def _animation(image: Image.Image, limits: Limits, param: str) -> Video:
    _check_size(image.width, image.height, limits, param)
    pages = ImageSequence.Iterator(image)
    frames = _gathered((np.asarray(page.convert("RGB")) for page in pages), limits, param)
    seconds = image.info.get("duration", 0) / 1000
    return Video(frames, 1 / seconds if seconds > 0 else DEFAULT_RATE)


def _film(file: BinaryIO, limits: Limits, param: str) -> Video:
    av = pyav("A film that is no GIF or WebP", param)
    try:
        with av.open(file, "r") as container:
            if not container.streams.video:
                raise _unreadable(param, "it has no pictures")
            stream = container.streams.video[0]
            _check_size(stream.width, stream.height, limits, param)
            frames = _gathered(_pictures(container, stream), limits, param)
            return Video(frames, float(stream.average_rate or DEFAULT_RATE))
    except av.FFmpegError as error:
        raise _unreadable(param, error.strerror or "no known format") from None


def _pictures(container: Any, stream: Any) -> Iterator[np.ndarray]:
    for frame in container.decode(stream):
        yield frame.to_ndarray(format="rgb24")


def _gathered(pictures: Iterator[np.ndarray], limits: Limits, param: str) -> np.ndarray:
    """uint8 [T, H, W, 3]; stops as soon as there are too many."""
    frames: list[np.ndarray] = []
    for picture in pictures:
        if frames and picture.shape != frames[0].shape:
            raise _unreadable(param, "its pictures have different sizes")
        frames.append(picture)
        if len(frames) > limits.video_frames:
            raise TooLarge(f'"{param}" has more than {limits.video_frames} frames.', param=param)
        if len(frames) * picture.nbytes > limits.decoded_bytes:
            raise TooLarge(f'"{param}" has more than {limits.decoded_bytes} bytes decoded.', param=param)
    if not frames:
        raise _unreadable(param, "it has no pictures")
    return np.stack(frames)


def _check_size(width: int, height: int, limits: Limits, param: str) -> None:
    if width * height > limits.image_pixels:
        rule = f'"{param}" has {width} x {height} pixels; at most {limits.image_pixels} are taken.'
        raise TooLarge(rule, param=param, code="image_too_large")


def _unreadable(param: str, why: str) -> BadRequest:
    return BadRequest(f'"{param}" could not be decoded: {why}.', param=param, code="invalid_video")
