// A real OpenID provider for tests: `node oidc_provider.mjs` reads its settings as one line of JSON from standard input,
// and prints `ready`. Besides what providers do it can be told, by POST /test/tamper, to change what it signs.
import * as http from "node:http";
import { createInterface } from "node:readline";
import * as jose from "jose";
import Provider from "oidc-provider";

const line = await new Promise((resolve) => createInterface({ input: process.stdin }).once("line", resolve));
const { port, redirectUris, logoutUris, accounts, clientId, clientSecret } = JSON.parse(line);
const issuer = `http://127.0.0.1:${port}`;

async function makeKey(kid) {
  const { privateKey, publicKey } = await jose.generateKeyPair("RS256", { extractable: true });
  const more = { kid, use: "sig", alg: "RS256" };
  return { privateKey, priv: { ...(await jose.exportJWK(privateKey)), ...more }, pub: { ...(await jose.exportJWK(publicKey)), ...more } };
}
const keys = { first: await makeKey("first"), second: await makeKey("second") };
let tamper = {}, jwksAsked = 0;

const provider = new Provider(issuer, {
  clients: [{
    client_id: clientId, client_secret: clientSecret, redirect_uris: redirectUris, post_logout_redirect_uris: logoutUris,
    response_types: ["code"], grant_types: ["authorization_code"], token_endpoint_auth_method: "client_secret_basic",
  }],
  jwks: { keys: [keys.first.priv] },
  cookies: { keys: ["for tests only"] },
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "groups"] },
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  findAccount: (_ctx, id) => accounts[id] && { accountId: id, claims: () => ({ sub: id, ...accounts[id] }) },
});

async function sign(idToken) {
  const claims = { ...jose.decodeJwt(idToken), ...tamper.claims };
  for (const name of tamper.without ?? []) delete claims[name];
  if (tamper.alg === "none") return new jose.UnsecuredJWT(claims).encode();
  if (tamper.alg === "HS256") {
    const secret = new TextEncoder().encode(tamper.publicKey ? JSON.stringify(keys.first.pub) : clientSecret);
    return new jose.SignJWT(claims).setProtectedHeader({ alg: "HS256", kid: "first" }).sign(secret);
  }
  const key = keys[tamper.key ?? "first"];
  return new jose.SignJWT(claims).setProtectedHeader({ alg: "RS256", kid: tamper.kid ?? key.pub.kid }).sign(key.privateKey);
}

provider.use(async (ctx, next) => {
  if (ctx.path === "/test/tamper") {
    let body = "";
    for await (const chunk of ctx.req) body += chunk;
    tamper = JSON.parse(body || "{}");
    ctx.body = { jwksAsked };
    return;
  }
  await next();
  if (ctx.oidc?.route === "jwks" || ctx.path === "/jwks") {
    jwksAsked += 1;
    if (tamper.published) ctx.body = { keys: tamper.published.map((name) => keys[name].pub) };
  }
  if (ctx.path === "/token" && ctx.body?.id_token && Object.keys(tamper).length) ctx.body.id_token = await sign(ctx.body.id_token);
  if (ctx.path === "/me" && tamper.userinfo) ctx.body = { ...ctx.body, ...tamper.userinfo };
  if (ctx.path === "/.well-known/openid-configuration" && tamper.metadata) ctx.body = { ...ctx.body, ...tamper.metadata };
});
http.createServer(provider.callback()).listen(port, "127.0.0.1", () => console.log("ready"));
