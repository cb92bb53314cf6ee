"""Pictures and clips of pictures: PNG, JPEG, WebP and GIF by Pillow, MP4 by PyAV; data URLs and base64, strictly."""

from __future__ import annotations

import base64
import binascii
import io
import re
from fractions import Fraction
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from serving.api.media.optional import pyav
from serving.errors import BadRequest, TooLarge
from serving.settings import Limits

DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?P<base64>;base64)?,", re.ASCII)
READABLE = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
LOSSLESS = {"png"}
RATES = (0.1, 240.0)  # frames a second: a GIF and a WebP say milliseconds, of which there is a most


def from_data_url(url: str, param: str) -> bytes:
    """The bytes of a base64 data URL; other URLs are refused."""
    head = DATA_URL.match(url)
    if head is None:
        rule = f'"{param}" must be a data URL (data:...;base64,...); this server does not fetch it.'
        raise BadRequest(rule, param=param, code="unsupported_url")
    if not head["base64"]:
        raise BadRequest(f'"{param}" must be a base64 data URL.', param=param)
    return from_base64(url[head.end() :], param)


def from_base64(text: str, param: str) -> bytes:
    """Strict base64: no stray characters, full padding, not empty."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f'"{param}" is not base64.', param=param, code="invalid_base64") from None
    if not data:
        raise BadRequest(f'"{param}" is empty.', param=param, code="empty_file")
    return data


def decode_image(file: BinaryIO, limits: Limits, param: str, mode: str = "RGB") -> np.ndarray:
    """A picture as uint8 [H, W, 3] (or [H, W] for mode "L"). Its size is checked before its pixels are read."""
    file.seek(0)
    try:
        with Image.open(file, formats=READABLE) as image:
            if image.width * image.height > limits.image_pixels:
                rule = f'"{param}" has {image.width} x {image.height} pixels; at most {limits.image_pixels} are taken.'
                raise TooLarge(rule, param=param, code="image_too_large")
            return np.asarray(image.convert(mode))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = "no known format" if isinstance(error, UnidentifiedImageError) else str(error)
        raise BadRequest(f'"{param}" could not be decoded: {why}.', param=param, code="invalid_image") from None


def encode_image(pixels: np.ndarray, fmt: str, quality: int) -> bytes:
    """uint8 [H, W, 3] as a file; `quality` 0 to 100 counts for JPEG and WebP."""
    buffer = io.BytesIO()
    options = {} if fmt in LOSSLESS else {"quality": quality}
    Image.fromarray(pixels).save(buffer, fmt.upper(), **options)
    return buffer.getvalue()


def check_video(fmt: str, fps: float) -> None:
    """Refuse, before anything is made, a format that cannot be written here and a rate that no format can say."""
    low, high = RATES
    if not low <= fps <= high:
        raise BadRequest(f'"fps" must be {low:g} to {high:g}, got {fps:g}.', param="fps")
    if fmt == "mp4":
        pyav('"mp4" (unlike "webp" and "gif")', "output_format")


def encode_video(frames: np.ndarray, fps: float, fmt: str) -> bytes:
    """uint8 [T, H, W, 3] as MP4 (H.264), or as an animated WebP or GIF."""
    if fmt == "mp4":
        return _encode_mp4(frames, fps)
    buffer = io.BytesIO()
    first, *rest = [Image.fromarray(frame) for frame in frames]
    options = {"lossless": True} if fmt == "webp" else {}
    first.save(buffer, fmt.upper(), save_all=True, append_images=rest, duration=round(1000 / fps), loop=0, **options)
    return buffer.getvalue()


def _encode_mp4(frames: np.ndarray, fps: float) -> bytes:
    av = pyav('"mp4"', "output_format")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for pixels in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode(None))
    return buffer.getvalue()
