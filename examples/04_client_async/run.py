"""Four requests at once, one stream, one refusal."""

from __future__ import annotations

import asyncio
import sys

from toolkit.client import APIError, AsyncClient

SENTENCES = ("Good morning.", "A light wind blows.", "Then the rain begins.", "Good night.")


async def main(model: str = "kokoro", url: str = "http://127.0.0.1:8000") -> None:
    async with AsyncClient(url) as client:
        files = await asyncio.gather(*(client.speak(text, model=model) for text in SENTENCES))
        for text, file in zip(SENTENCES, files, strict=True):
            print(f"{text!r}: {len(file)} bytes of WAV")

        sizes = [len(part) async for part in client.stream("speak", SENTENCES[1], model=model, response_format="pcm")]
        print(f"stream: {sum(sizes)} bytes in {len(sizes)} parts")

        try:
            await client.speak("Hello.", model=model, response_format="mp4")
        except APIError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
