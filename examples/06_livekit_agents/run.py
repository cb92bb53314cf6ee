"""LiveKit Agents' OpenAI plugins on a toolkit server: a sentence spoken, heard again, and answered."""

from __future__ import annotations

import asyncio
import sys

from livekit import rtc
from livekit.agents import llm
from livekit.plugins import openai


async def main(text: str, voice: str, ears: str, url: str, brain: str = "") -> None:
    server = {"base_url": f"{url}/v1", "api_key": "none"}
    tts = openai.TTS(model=voice, voice="default", response_format="pcm", **server)
    stt = openai.STT(model=ears, language="en", **server)
    sound = rtc.combine_audio_frames([event.frame async for event in tts.synthesize(text)])
    print(f"spoken: {sound.duration:.2f} s")
    heard = (await stt.recognize(sound)).alternatives[0].text
    print(f"heard: {heard}")
    await tts.aclose()
    await stt.aclose()
    if brain:
        said = llm.ChatContext()
        said.add_message(role="user", content=heard or text)
        async with openai.LLM(model=brain, **server).chat(chat_ctx=said) as stream:
            parts = [chunk.delta.content or "" async for chunk in stream if chunk.delta]
        print(f"answered: {''.join(parts)!r}")


if __name__ == "__main__":
    given = sys.argv[1:]
    defaults = ["Good morning. It is a quarter past nine.", "kokoro", "whisper_tiny_en", "http://127.0.0.1:8000"]
    asyncio.run(main(*given, *defaults[len(given) :]))
