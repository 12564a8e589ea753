/* Holds the one stream of a browser for all its tabs. Each tab says which topics it shows; the stream gets their union. */
"use strict";

const SILENT = 45000; // ms without a word, after which the connection counts as dead
const tabs = new Map(); // port -> topics
let source = null, stream = null, csrf = "", session = "", subscribed = "", lastHeard = 0, retry = 0, timer = null, state = "connecting";

const union = () => [...new Set([...tabs.values()].flat())].sort();
const tell = (message) => { for (const port of tabs.keys()) port.postMessage(message); };
const setState = (next) => { state = next; tell({ state }); };

function close() {
  if (source) source.close();
  source = stream = null;
}

function connect() {
  clearTimeout(timer);
  close();
  const topics = union();
  if (!topics.length) return;
  subscribed = topics.join("\n");
  source = new EventSource("/live?" + topics.map((topic) => "topic=" + encodeURIComponent(topic)).join("&"));
  lastHeard = Date.now();
  source.addEventListener("hello", (event) => {
    lastHeard = Date.now();
    retry = 0;
    stream = JSON.parse(event.data).stream;
    setState("live");
    tell({ refresh: true });
    update();
  });
  source.addEventListener("topics", (event) => { lastHeard = Date.now(); tell({ topics: JSON.parse(event.data) }); });
  source.addEventListener("beat", () => { lastHeard = Date.now(); });
  source.addEventListener("gone", () => { close(); setState("offline"); tell({ gone: true }); });
  source.onerror = again;
}

function again() {
  close();
  retry += 1;
  setState(retry > 3 ? "offline" : "catching-up");
  clearTimeout(timer);
  timer = setTimeout(connect, Math.min(400 * 2 ** retry, 4000));
}

async function update() {
  const topics = union();
  if (topics.join("\n") === subscribed && source) return;
  if (!topics.length) { close(); return; }
  if (!source) { if (state !== "catching-up") connect(); return; }
  if (!stream) return; // `hello` comes here again
  subscribed = topics.join("\n");
  try {
    const answer = await fetch("/live/" + stream, {
      method: "POST", headers: { "content-type": "application/json", "x-csrf-token": csrf }, body: JSON.stringify(topics),
    });
    if (!answer.ok) connect();
    else tell({ refresh: true });
  } catch { again(); }
}

function listen(port) {
  port.onmessage = ({ data }) => {
    if (data.bye) { tabs.delete(port); update(); return; }
    const someoneElse = data.session !== session;
    ({ csrf, session } = data);
    tabs.set(port, data.topics);
    port.postMessage({ state });
    if (someoneElse || data.now) connect();
    else update();
  };
}

setInterval(() => { if (source && Date.now() - lastHeard > SILENT) again(); }, 5000);
self.onconnect = (event) => listen(event.ports[0]);
self.signoffListen = listen; // where there are no shared workers, the page runs this file itself
