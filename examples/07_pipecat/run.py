"""Pipecat's OpenAI services on a toolkit server: a sentence through a pipeline that speaks it and hears it again."""

from __future__ import annotations

import asyncio
import io
import sys
import wave

from loguru import logger
from pipecat.frames.frames import EndFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import VALID_VOICES, OpenAITTSService
from pipecat.workers.runner import WorkerRunner


class Ear(FrameProcessor):
    """Keeps the sound that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.sound = b""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.sound += frame.audio
        await self.push_frame(frame, direction)


async def main(text: str, voice: str, ears: str, url: str) -> None:
    server = {"base_url": f"{url}/v1", "api_key": "none"}
    VALID_VOICES["default"] = "default"  # Pipecat's list has OpenAI's own voices alone
    tts = OpenAITTSService(settings=OpenAITTSService.Settings(model=voice, voice="default"), **server)
    ear = Ear()
    worker = PipelineWorker(Pipeline([tts, ear]))
    await worker.queue_frames([TTSSpeakFrame(text), EndFrame()])
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()
    print(f"spoken: {len(ear.sound) / 2 / 24_000:.2f} s")
    stt = OpenAISTTService(settings=OpenAISTTService.Settings(model=ears), **server)
    heard = [frame.text async for frame in stt.run_stt(wav(ear.sound)) if hasattr(frame, "text")]
    print(f"heard: {''.join(heard)}")


def wav(pcm: bytes, rate: int = 24_000) -> bytes:
    """16-bit mono samples as a file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(pcm)
    return buffer.getvalue()


if __name__ == "__main__":
    logger.remove()
    given = sys.argv[1:]
    defaults = ["Good morning. It is a quarter past nine.", "kokoro", "whisper_tiny_en", "http://127.0.0.1:8000"]
    asyncio.run(main(*given, *defaults[len(given) :]))
