"""Speech that is saved while it is made."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from openai import OpenAI


def main(file: str, text: str, model: str = "kokoro", url: str = "http://127.0.0.1:8000") -> None:
    client, began, size = OpenAI(base_url=f"{url}/v1", api_key="none"), time.monotonic(), 0
    speech = client.audio.speech.with_streaming_response.create(
        model=model, voice="default", input=text, response_format="wav", extra_body={"stream": True}
    )
    with speech as response, Path(file).open("wb") as out:
        for data in response.iter_bytes():
            if not size:
                print(f"first sound after {time.monotonic() - began:.3f} s")
            size += out.write(data)
    print(f"{file}: {size} bytes after {time.monotonic() - began:.3f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
