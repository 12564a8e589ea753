"""Sign-in with OpenID Connect: authorization code with PKCE, and an ID token that is checked before it is believed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import urlencode

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import ClaimError, ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from signoff.people.canonical import nameable
from signoff.people.identities import Arrival
from signoff.web.providers import ProviderConfig
from signoff.workflow.errors import Refused

# Only signatures that the provider alone can make: nothing that is keyed with our secret, and not `none`.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"
)  # fmt: skip
LEEWAY: Final = 60  # seconds by which clocks may differ
TIMEOUT: Final = 10.0  # seconds for one request to the provider
KEEP: Final = 3600.0  # seconds for which what the provider says of itself is not asked for again


class Unreachable(Refused):
    """The provider does not answer, or not as one does."""

    status = 503

    def __init__(self, message: str) -> None:
        super().__init__("unreachable", message)


@dataclass(frozen=True, slots=True)
class Flow:
    """One sign-in under way, kept on our side: what the callback must fit."""

    provider: str
    state: str
    nonce: str
    verifier: str
    next: str

    @classmethod
    def begin(cls, provider: str, target: str) -> Flow:
        return cls(provider, secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(64), target)


class Provider:
    """One configured provider, with what it told of itself."""

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        self._secret = config.secret()
        self._metadata: dict[str, Any] = {}
        self._metadata_at = float("-inf")
        self._keys: KeySet | None = None
        self._keys_at = float("-inf")
        self._lock = asyncio.Lock()

    async def metadata(self) -> Mapping[str, Any]:
        """Its discovery document. Its issuer has to be the configured one, to the letter."""
        async with self._lock:
            if time.monotonic() - self._metadata_at >= KEEP:
                found = await self._get_json(f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration")
                if found.get("issuer") != self.config.issuer:
                    raise Refused("issuer", "The provider calls itself by another name than the one configured")
                needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
                if not all(isinstance(found.get(name), str) for name in needed):
                    raise Unreachable("The provider does not say where its endpoints are")
                self._metadata, self._metadata_at = found, time.monotonic()
            return self._metadata

    async def address(self, flow: Flow, redirect_uri: str) -> str:
        """Where the browser goes to sign in."""
        endpoint = (await self.metadata())["authorization_endpoint"]
        async with self._client(redirect_uri) as client:
            url, _state = client.create_authorization_url(
                endpoint, state=flow.state, nonce=flow.nonce, code_verifier=flow.verifier
            )
        return str(url)

    async def exchange(self, flow: Flow, code: str, redirect_uri: str) -> dict[str, Any]:
        """The tokens for a code. The provider refuses a code that was used, and a verifier that does not fit."""
        metadata = await self.metadata()
        try:
            async with self._client(redirect_uri) as client:
                token = await client.fetch_token(
                    metadata["token_endpoint"], grant_type="authorization_code", code=code, code_verifier=flow.verifier
                )
        except AuthlibBaseError as error:
            raise Refused("code", "The provider did not accept the sign-in") from error
        except (httpx2.HTTPError, ValueError) as error:
            raise Unreachable("The provider does not answer as it should") from error
        if not isinstance(token.get("id_token"), str) or not isinstance(token.get("access_token"), str):
            raise Refused("token", "The provider gave no proof of who you are")
        return dict(token)

    async def claims(self, token: Mapping[str, Any], nonce: str, now: datetime) -> dict[str, Any]:
        """What the ID token says, once its signature, issuer, audience, times and nonce were found right."""
        try:
            decoded = await self._decode(token["id_token"])
            options = {
                "iss": {"essential": True, "value": self.config.issuer},
                "aud": {"essential": True, "value": self.config.client_id},
                "sub": {"essential": True},
            }
            params = {"nonce": nonce, "client_id": self.config.client_id, "access_token": token["access_token"]}
            checked = CodeIDToken(decoded.claims, decoded.header, options=options, params=params)
            checked.validate(now=int(now.timestamp()), leeway=LEEWAY)
        except ExpiredTokenError as error:
            raise Refused("expired", "The proof of who you are has expired") from error
        except ClaimError as error:
            words = {"iss": "issuer", "aud": "audience", "azp": "audience"}
            claim = getattr(error, "claim", "")
            raise Refused(
                words.get(claim, claim or "token"), f"The proof of who you are has a wrong {claim}"
            ) from error
        except (JoseError, AuthlibBaseError, ValueError, TypeError) as error:
            raise Refused("signature", "The proof of who you are is not signed as it has to be") from error
        if not isinstance(checked["sub"], str) or not checked["sub"] or not nameable(checked["sub"]):
            raise Refused("sub", "The proof of who you are names nobody")
        wanted = {"email"} | ({self.config.group_claim} if self.config.roles or self.config.groups else set())
        if wanted <= decoded.claims.keys():
            return dict(decoded.claims)
        return {**await self._userinfo(token["access_token"], checked["sub"]), **decoded.claims}

    def arrival(self, claims: Mapping[str, Any]) -> Arrival:
        """What the settings make of the claims."""
        config, said = self.config, claims.get(self.config.group_claim)
        listed = said if isinstance(said, list) else [said]
        claimed = [name for name in listed if isinstance(name, str)]
        verified = claims.get("email_verified")
        name = claims.get("name") or claims.get("preferred_username")
        return Arrival(
            provider=config.id, issuer=config.issuer, subject=claims["sub"],
            email=claims["email"] if isinstance(claims.get("email"), str) else None,
            email_verified=verified if isinstance(verified, bool) else None,
            name=name if isinstance(name, str) else "", role=config.role_of(claimed), role_follows=bool(config.roles),
            groups=frozenset(config.groups[name] for name in claimed if name in config.groups),
            managed=frozenset(config.groups.values()), trusted=config.trusted, switch=config.switch,
        )  # fmt: skip

    async def sign_out_address(self, id_token: str | None, back: str) -> str | None:
        """Where the browser goes to sign out there as well; None when the provider offers it not, or is away."""
        if not self.config.sign_out:
            return None
        try:
            endpoint = (await self.metadata()).get("end_session_endpoint")
        except Refused:
            return None
        if not isinstance(endpoint, str):
            return None
        query = {"client_id": self.config.client_id, "post_logout_redirect_uri": back}
        query |= {"id_token_hint": id_token} if id_token else {}
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def _decode(self, id_token: str) -> jwt.Token:
        # a key that the provider takes back is believed for an hour at most
        known = self._keys if time.monotonic() - self._keys_at < KEEP else None
        try:
            return jwt.decode(id_token, known or await self._fetch_keys(), algorithms=ALGORITHMS)
        except InvalidKeyIdError:
            if known is None:
                raise  # these keys are fresh
            # a key that we have not seen: the provider may have changed its keys, which is looked up once
            return jwt.decode(id_token, await self._fetch_keys(), algorithms=ALGORITHMS)

    async def _fetch_keys(self) -> KeySet:
        found = await self._get_json((await self.metadata())["jwks_uri"])
        keys = found.get("keys")
        usable = [
            key
            for key in (keys if isinstance(keys, list) else [])
            if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"
        ]
        self._keys, self._keys_at = KeySet.import_key_set({"keys": usable}), time.monotonic()
        return self._keys

    async def _userinfo(self, access_token: str, subject: str) -> dict[str, Any]:
        """Claims that are not in the ID token. They count only for the same subject."""
        endpoint = (await self.metadata()).get("userinfo_endpoint")
        if not isinstance(endpoint, str):
            return {}
        found = await self._get_json(endpoint, {"authorization": f"Bearer {access_token}"})
        if found.get("sub") != subject:
            raise Refused("sub", "The provider told of somebody else than the one who signed in")
        return found

    async def _get_json(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        try:
            async with httpx2.AsyncClient(timeout=TIMEOUT) as client:
                answer = await client.get(url, headers=dict(headers or {}))
                answer.raise_for_status()
                found = answer.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise Unreachable(f"{self.config.name} does not answer. Try again in a while") from error
        if not isinstance(found, dict):
            raise Unreachable(f"{self.config.name} does not answer as it should")
        return cast("dict[str, Any]", found)

    def _client(self, redirect_uri: str) -> AsyncOAuth2Client:
        offered = self._metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        method = "client_secret_basic" if "client_secret_basic" in offered else "client_secret_post"
        return AsyncOAuth2Client(
            self.config.client_id,
            self._secret,
            token_endpoint_auth_method=method if self._secret else "none",
            scope=" ".join(self.config.scopes),
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=TIMEOUT,
        )


class Providers:
    """All that are configured, by id."""

    def __init__(self, configs: Sequence[ProviderConfig] = ()) -> None:
        self._by_id = {config.id: Provider(config) for config in configs}

    def get(self, provider: str | None) -> Provider | None:
        return self._by_id.get(provider or "")

    @property
    def configs(self) -> list[ProviderConfig]:
        return [provider.config for provider in self._by_id.values()]

    @property
    def buttons(self) -> list[tuple[str, str]]:
        """(id, name), in the order of the settings."""
        return [(provider.config.id, provider.config.name) for provider in self._by_id.values()]
