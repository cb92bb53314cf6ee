"""A request whose input is sent while its output comes."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

import numpy as np
from websockets.asyncio.client import connect

PIECE = 40  # samples in one message


def as_array(values: np.ndarray) -> dict[str, Any]:
    """An array as the server reads it: its type, its shape, its bytes in base64."""
    data = base64.b64encode(values.astype("<f4").tobytes()).decode()
    return {"dtype": "float32", "shape": list(values.shape), "data": data}


async def main(url: str = "http://127.0.0.1:8000") -> None:
    sound = np.sin(np.arange(200, dtype=np.float32) / 5)
    async with connect(url.replace("http", "ws", 1) + "/generate/ws") as socket:

        async def send() -> None:
            await socket.send(json.dumps({"type": "open", "model": "toy"}))
            for at in range(0, len(sound), PIECE):
                piece = as_array(sound[at : at + PIECE])
                await socket.send(json.dumps({"type": "append", "port": "audio_in", "array": piece}))
            await socket.send(json.dumps({"type": "end_input", "port": "audio_in"}))

        sending = asyncio.create_task(send())
        tokens: list[int] = []
        while (event := json.loads(await socket.recv()))["type"] == "output":
            if event["port"] == "tokens":
                array = event["data"]
                tokens += np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).tolist()
        await sending
    print(f"{event['type']}: {len(tokens)} tokens for {len(sound)} samples: {tokens[:8]} ...")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
