"""A server process over the fake engine: `python -m serving.api.tests.served SECONDS DRAIN [fail]`."""

from __future__ import annotations

import sys

from serving.api.server import serve
from serving.api.tests.fake import FakeEngine, Out, Sleep, make_app
from serving.core.contract import Segment
from serving.errors import SetupError
from serving.settings import ServerSettings


class Broken(FakeEngine):
    async def start(self):
        raise RuntimeError("no such device")


def main() -> None:
    seconds, drain = float(sys.argv[1]), float(sys.argv[2])
    hello = Out("segments", [Segment(0, 1, "Hi")])
    make = Broken if sys.argv[3:] else FakeEngine
    app, _ = make_app(make(lambda task: [hello, Sleep(seconds), hello]))
    try:
        serve(app, ServerSettings(port=0, drain_seconds=drain), lambda url: print(url, flush=True))
    except SetupError as error:
        sys.exit(str(error))
    print("drained", flush=True)


if __name__ == "__main__":
    main()
