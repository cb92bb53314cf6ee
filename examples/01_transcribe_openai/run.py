"""A recording to text: whole, with times, and as deltas."""

from __future__ import annotations

import sys
from pathlib import Path

from openai import OpenAI

MODEL = "whisper_tiny_en"


def main(file: str, url: str = "http://127.0.0.1:8000") -> None:
    client, sound = OpenAI(base_url=f"{url}/v1", api_key="none"), Path(file)

    print(client.audio.transcriptions.create(model=MODEL, file=sound).text)

    timed = client.audio.transcriptions.create(model=MODEL, file=sound, response_format="verbose_json")
    for segment in timed.segments or ():
        print(f"{segment.start:6.2f} {segment.end:6.2f} {segment.text.strip()}")

    for event in client.audio.transcriptions.create(model=MODEL, file=sound, stream=True):
        if event.type == "transcript.text.delta":
            print(event.delta, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
