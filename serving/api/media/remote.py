"""Media that a request names by URL: data URLs always, the web only as far as the settings allow.

A server that fetches for its clients can be turned against its own network. So: only listed hosts, only addresses of
the public internet, the connection goes to the very address that was checked, each redirect is checked again, and
size and time are bounded. Proxies of the environment are not used, as they would resolve names themselves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx

from serving.api.media.images import from_data_url
from serving.errors import BadRequest, TooLarge
from serving.settings import MediaOptions

REDIRECTS = 3
PORTS = {"http": 80, "https": 443}
NAT64 = IPv6Network("64:ff9b::/96")
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Every address of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]


class Fetcher:
    """Reads URLs for requests. `resolve_with` and `transport` are how it reaches the network."""

    def __init__(
        self,
        options: MediaOptions,
        resolve_with: Resolve = resolve,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._options, self._resolve, self._transport = options, resolve_with, transport
        self._hosts = frozenset(host.lower() for host in options.remote_hosts)

    async def read(self, url: str, param: str) -> bytes:
        """The bytes of a data URL, or of a URL of a listed host. Raises `BadRequest` or `TooLarge`."""
        if not self._hosts or not url.lower().startswith(("http://", "https://")):
            return from_data_url(url, param)
        seconds = self._options.remote_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._fetch(url, param)
        except TimeoutError:
            raise _failed(param, f"it took longer than {seconds:g} seconds", "remote_timeout") from None
        except httpx.HTTPError as error:
            raise _failed(param, type(error).__name__) from None

    async def _fetch(self, url: str, param: str) -> bytes:
        client = httpx.AsyncClient(
            transport=self._transport, trust_env=False, timeout=self._options.remote_seconds, follow_redirects=False
        )
        async with client:
            for _ in range(REDIRECTS + 1):
                request = await self._request(client, url, param)
                response = await client.send(request, stream=True)
                try:
                    if not response.is_redirect:
                        return await self._body(response, param)
                finally:
                    await response.aclose()
                url = str(_parsed(url, param).join(response.headers["location"]))
        raise _failed(param, f"it redirects more than {REDIRECTS} times")

    async def _request(self, client: httpx.AsyncClient, url: str, param: str) -> httpx.Request:
        """A request that connects to the address which was checked, and speaks to the host that was named."""
        parsed = _parsed(url, param)
        host = self._listed(parsed, param)
        port = parsed.port or PORTS[parsed.scheme]
        try:
            addresses = await self._resolve(parsed.host, port)
        except OSError:
            raise _failed(param, f'"{host}" has no address') from None
        if not addresses or not all(map(public, addresses)):
            raise _refused(param, f'"{host}" is not an address of the public internet.')
        headers = {"host": parsed.netloc.decode(), "accept-encoding": "identity"}
        pinned = parsed.copy_with(host=addresses[0])
        return client.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": parsed.host})

    def _listed(self, url: httpx.URL, param: str) -> str:
        host = url.host.lower()
        name = host if url.port is None else f"{host}:{url.port}"
        if url.scheme not in PORTS or url.userinfo or name not in self._hosts:
            listed = ", ".join(sorted(self._hosts))
            raise _refused(param, f'"{name}" is none of the hosts that this server fetches from: {listed}.')
        return name

    async def _body(self, response: httpx.Response, param: str) -> bytes:
        """The body, counted as it comes; what is compressed in spite of the request is not unpacked."""
        if response.status_code != 200:
            raise _failed(param, f"its server answered {response.status_code}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise _failed(param, "its server sent it compressed")
        data, limit = bytearray(), self._options.remote_bytes
        async for part in response.aiter_raw():
            data += part
            if len(data) > limit:
                rule = f'"{param}" names more than {limit} bytes, the limit for media that is fetched.'
                raise TooLarge(rule, param=param, code="remote_too_large")
        if not data:
            raise BadRequest(f'"{param}" is empty.', param=param, code="empty_file")
        return bytes(data)


def public(address: str) -> bool:
    """Whether an address is of the public internet, also when it carries an IPv4 address inside."""
    try:
        at = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner = _inner(at) if isinstance(at, IPv6Address) else None
    return at.is_global and not at.is_multicast and (inner is None or (inner.is_global and not inner.is_multicast))


def _inner(at: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if at in NAT64:
        return IPv4Address(int(at) & 0xFFFFFFFF)
    return at.ipv4_mapped or at.sixtofour or (at.teredo[1] if at.teredo else None)


def _parsed(url: str, param: str) -> httpx.URL:
    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        raise BadRequest(f'"{param}" is not a URL.', param=param, code="unsupported_url") from None


def _refused(param: str, why: str) -> BadRequest:
    return BadRequest(f'"{param}": {why}', param=param, code="unsupported_url")


def _failed(param: str, why: str, code: str = "remote_failed") -> BadRequest:
    return BadRequest(f'"{param}" could not be fetched: {why}.', param=param, code=code)
