"""The test site in a process of its own: `python -m tests.web.process URL PORT order|cancel|stay READY-FILE`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.web.world import running_site


async def main(url: str, port: int, then: str, ready: Path) -> None:
    async with running_site(url, port) as site:
        if then == "order":
            await site.order("o-kill", run_id="o-kill")
        elif then == "cancel":
            await site.engine.run("o-kill").cancel(reason="while nobody looked")
        await asyncio.to_thread(ready.write_text, site.address)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])))
