/* What pages do beyond HTML: fetch what changed, keep times fresh, dialogs, the step panel. Everything works without. */
"use strict";
(() => {
  const script = document.currentScript;
  const token = document.querySelector('meta[name="csrf-token"]');
  const csrf = token?.content ?? "", session = token?.dataset.session ?? "";
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  /* Live ------------------------------------------------------------------------------------------------------------ */
  const light = $("#live-light");
  const WORDS = { live: "Live", "catching-up": "Catching up", offline: "Offline", connecting: "Connecting" };
  const stale = new Set();
  let port = null, told = "";

  function showState(state) {
    if (!light || light.dataset.state === state && !light.hidden) return;
    light.hidden = false;
    light.dataset.state = state;
    $(".live-word", light).textContent = WORDS[state];
  }

  const liveParts = () => $$("[data-live]");

  function announce(now = false) {
    if (!port) return;
    const topics = [...new Set(liveParts().map((part) => part.dataset.live))];
    if (topics.join() === told && !now) return;
    told = topics.join();
    port.postMessage({ topics, csrf, session, now });
  }

  function refresh(part) {
    // A tab that nobody looks at fetches only its badge, for the title; the rest when it is looked at.
    if (document.hidden && part.id !== "badge") stale.add(part.id);
    else htmx.trigger(part, "live");
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    for (const id of stale) { const part = document.getElementById(id); if (part) htmx.trigger(part, "live"); }
    stale.clear();
  });

  // A page that is being left by a form must not be loaded again over it: signing out ends the stream as well.
  let leaving = false;
  document.addEventListener("submit", (event) => { leaving ||= !event.defaultPrevented; });
  addEventListener("pageshow", () => { leaving = false; });

  function hear({ data }) {
    if (data.state) showState(data.state);
    if (data.gone && !leaving) location.reload();
    if (data.refresh) liveParts().forEach(refresh);
    if (data.topics) for (const part of liveParts()) if (part.dataset.live in data.topics) refresh(part);
  }

  function connect() {
    if (!light || !csrf || !liveParts().length) return;
    const file = script.dataset.liveWorker;
    if (window.SharedWorker) {
      port = new SharedWorker(file, { name: "signoff-live" }).port;
      port.onmessage = hear;
      announce();
    } else {
      const channel = new MessageChannel();
      const inline = document.createElement("script");
      inline.src = file;
      inline.onload = () => { self.signoffListen(channel.port2); port = channel.port1; port.onmessage = hear; announce(); };
      document.head.append(inline);
    }
  }
  addEventListener("pagehide", () => { port?.postMessage({ bye: true }); told = ""; });
  addEventListener("pageshow", (event) => { if (event.persisted) announce(); });

  document.addEventListener("htmx:config:request", ({ detail }) => {
    const headers = detail.ctx?.request?.headers;
    if (!headers) return;
    const source = detail.ctx.sourceElement;
    if (csrf) headers["X-CSRF-Token"] = csrf;
    if (source?.dataset?.etag) headers["If-None-Match"] = `"${source.dataset.etag}"`;
  });
  document.addEventListener("htmx:after:swap", () => { settle(); announce(); });

  /* After every change of the page ------------------------------------------------------------------------------------ */
  function settle() {
    const run = $("#run-live");
    if (run) {
      const icon = $("#favicon");
      if (icon && icon.getAttribute("href") !== run.dataset.favicon) icon.href = run.dataset.favicon;
    }
    const count = Number($("#badge")?.dataset.count ?? 0);
    const title = (run?.dataset.title ?? document.title).replace(/^\(\d+\) /, "");
    const full = count ? `(${count}) ${title}` : title;
    if (document.title !== full) document.title = full;
    const over = $("#decision-state")?.dataset.over;
    // Not `disabled`: a button that somebody is on keeps the focus, and a screen reader can still read why it is off.
    for (const button of $$("[data-decide] button, .deeds form button")) {
      if (!over === !button.hasAttribute("aria-disabled")) continue;
      const said = (button.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => id && id !== "why");
      if (over) { button.setAttribute("aria-disabled", "true"); said.push("why"); }
      else button.removeAttribute("aria-disabled");
      if (said.length) button.setAttribute("aria-describedby", said.join(" ")); else button.removeAttribute("aria-describedby");
    }
    glow();
    markOpenStep();
    tick();
  }

  /* A value that changed in place glows once. */
  const known = new Map();
  function glow() {
    for (const item of $$("[data-glow]")) {
      const { glow: name } = item.dataset, text = item.textContent;
      if (known.has(name) && known.get(name) !== text) {
        item.classList.remove("glow");
        void item.offsetWidth; // begins anew
        item.classList.add("glow");
      }
      known.set(name, text);
    }
  }

  /* Times ---------------------------------------------------------------------------------------------------------- */
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  function say(seconds, both = false) {
    const index = UNITS.findIndex(([size]) => seconds >= size);
    if (index < 0) return "1 s";
    const [size, unit] = UNITS[index], [smaller, name] = UNITS[index + 1] ?? [];
    const rest = both && smaller ? Math.floor(seconds % size / smaller) : 0;
    return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
  }
  const skew = Date.now() - Date.parse(document.documentElement.dataset.now || new Date().toISOString());
  function tick() {
    const now = Date.now() - skew;
    for (const time of $$("time[data-relative]")) {
      const seconds = (now - Date.parse(time.dateTime)) / 1000;
      const coming = "coming" in time.dataset;
      const text = coming && seconds > -1 ? "now" : seconds > -1 && seconds < 5 ? "just now"
        : seconds > 0 ? `${say(seconds)} ago` : `in ${say(-seconds, seconds <= -3600)}`;
      if (time.textContent !== text) time.textContent = text;
    }
    for (const span of $$("[data-since]")) {
      const seconds = Math.max(0, (now - Date.parse(span.dataset.since)) / 1000);
      if (seconds >= 1) span.textContent = say(seconds, seconds >= 3600);
    }
  }
  setInterval(tick, 1000);

  /* Dialogs: a link that leads to a question opens it in place ------------------------------------------------------------ */
  const dialog = $("#dialog");
  document.addEventListener("click", async (event) => {
    const link = event.target.closest?.("a");
    for (const menu of $$("details.menu[open]")) {
      /* the focus comes back to where it was when a dialog closes: a link in a closed menu could not have it */
      if (link && menu.contains(link)) $("summary", menu).focus();
      if (!menu.contains(event.target) || link) menu.removeAttribute("open");
    }
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    if ("closeDialog" in link.dataset && dialog?.open) { event.preventDefault(); dialog.close(); return; }
    if ("closePanel" in link.dataset) {
      event.preventDefault();
      const no = $("#panel-body")?.dataset.step;
      $("#panel").replaceChildren();
      history.replaceState(history.state, "", link.href);
      settle();
      document.querySelector(`#step-${no} a`)?.focus();
      return;
    }
    if (!("dialog" in link.dataset) || !dialog?.showModal) return;
    event.preventDefault();
    try {
      const answer = await fetch(link.href, { headers: { "HX-Request": "true" } });
      if (!answer.ok) throw new Error(String(answer.status));
      dialog.innerHTML = await answer.text();
      for (const box of $$("[data-shortcuts]", dialog)) box.checked = allowed();
      dialog.showModal();
      ($("input.number, textarea, select", dialog) ?? $("button", dialog))?.focus();
    } catch { location.href = link.href; }
  });
  document.addEventListener("change", async ({ target }) => {
    if (target.id !== "from_step") return;
    const question = target.form.parentElement, fresh = document.createElement("template");
    const address = `${target.form.getAttribute("action")}?${new URLSearchParams({ from: target.value })}`;
    const answer = await fetch(address, { headers: { "HX-Request": "true" } });
    fresh.innerHTML = answer.ok ? await answer.text() : "";
    for (const part of ["#dialog-title", ".consequences", "#answers", ".buttons button"]) {
      const told = $(part, fresh.content);
      if (told) $(part, question).replaceChildren(...told.childNodes);
    }
  });
  dialog?.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || dialog?.open) return;
    const menu = $("details.menu[open]");
    if (menu) { menu.removeAttribute("open"); $("summary", menu).focus(); return; }
    $("[data-close-panel]")?.click();
  });

  /* The step panel ---------------------------------------------------------------------------------------------------- */
  function markOpenStep() {
    const no = $("#panel-body")?.dataset.step;
    for (const link of $$(".step a")) {
      if (link.closest(".step").id === `step-${no}`) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }
  document.addEventListener("htmx:after:swap", (event) => {
    const target = event.detail?.ctx?.target;
    if (target?.id !== "panel") return;
    $("[data-close-panel]", target)?.focus({ preventScroll: true });
    const address = new URL(location);
    address.searchParams.set("step", $("#panel-body")?.dataset.step ?? "");
    history.replaceState(null, "", address);
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("button[aria-disabled='true']")) event.preventDefault();
    /* an option that is opened shows its form, not only its button */
    const option = event.target.closest?.(".option-more > summary")?.parentElement;
    if (option) setTimeout(() => { if (option.open) option.scrollIntoView({ block: "nearest" }); });
  });

  /* The keyboard: single keys move, none of them decides ---------------------------------------------------------------- */
  const SHORTCUTS = "signoff-shortcuts";
  const allowed = () => { try { return localStorage.getItem(SHORTCUTS) !== "off"; } catch { return true; } };
  const wide = matchMedia("(min-width: 1024px)");

  function step(by) {
    const links = $$(".inbox-row > a");
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    const open = links.findIndex((link) => link.getAttribute("aria-current") === "true");
    const next = at >= 0 ? at + by : open >= 0 ? open + by : by > 0 ? 0 : links.length - 1;
    const link = links[Math.max(0, Math.min(links.length - 1, next))];
    link.focus();
    link.scrollIntoView({ block: "nearest" });
  }

  function press(key) {
    const desk = $("#desk");
    const target = $(`#decide [data-key="${key}"], form#decide [data-key="${key}"]`);
    if (!target || desk?.matches(".list-first") && !wide.matches) return;
    target.focus();
    target.scrollIntoView({ block: "nearest" });
  }

  const KEYS = {
    j: () => step(1), k: () => step(-1), a: () => press("a"), r: () => press("r"),
    n: () => ($("[data-next]") ?? nextRow())?.click(),
    c: () => $("#comment")?.focus(),
    u: () => $(".place-back")?.click(),
    "/": () => ($("#find") ?? $(".top-search input"))?.focus(),
    "?": () => $("[data-keyboard]")?.click(),
  };
  function nextRow() {
    const rows = $$(".inbox-row[data-mine] > a");
    const at = rows.findIndex((link) => link.getAttribute("aria-current") === "true");
    return rows[at + 1] ?? rows.find((link) => link.getAttribute("aria-current") !== "true");
  }
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const typing = event.target.closest?.("input:not([type='radio'], [type='checkbox']), textarea, select, [contenteditable]");
    if (typing) { if (event.key === "Escape") typing.blur(); return; }
    if (dialog?.open || !allowed() || !Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  document.addEventListener("change", ({ target }) => {
    if (!("shortcuts" in target.dataset)) return;
    try { localStorage.setItem(SHORTCUTS, target.checked ? "on" : "off"); } catch { /* a browser that keeps nothing */ }
  });

  /* Forms: sent once --------------------------------------------------------------------------------------------------- */
  const buttonsOf = (form) => [...form.elements].filter((item) => item.type === "submit");
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.submitter?.getAttribute("aria-disabled") === "true") { event.preventDefault(); return; }
    const asks = dialog?.open && dialog.contains(form);
    if (!("once" in form.dataset)) {
      if (asks) { event.preventDefault(); inDialog(form, event.submitter); }
      return;
    }
    if (form.dataset.sent === "yes") { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    if (asks) { event.preventDefault(); inDialog(form, event.submitter); }
    else if ("stay" in form.dataset) { event.preventDefault(); answer(form, event.submitter); }
    // After the browser has read the pressed button's value.
    setTimeout(() => { for (const button of buttonsOf(form)) button.disabled = form.dataset.sent === "yes"; });
  });

  /* Answers are sent from the page, so that it is still there when the server is not. Sent again, an answer that was
     taken all the same leads to its receipt: the server takes none twice. */
  const AWAY = [502, 503, 504];
  function written(form, button) {
    $(".away")?.remove();
    const body = new URLSearchParams(new FormData(form));
    if (button?.name) body.append(button.name, button.value);
    document.documentElement.toggleAttribute("data-sending", true);
    return body;
  }
  function show(page) {
    port?.postMessage({ bye: true });
    document.open();
    document.write(page);
    document.close();
  }
  async function answer(form, button) {
    const body = written(form, button);
    let came, text;
    try {
      came = await fetch(form.action, { method: "POST", body, headers: { "X-Sent-By": "script" } });
      if (AWAY.includes(came.status)) throw came;
      text = await came.text();
    } catch { away(form, button); return; }
    const next = came.headers.get("X-Next") ?? (came.redirected && came.url);
    if (next) { location.assign(next); return; }
    show(text);  // what has to be looked at again, with what was typed
  }
  /* A dialog that is refused stays one: what is wrong stands in it, beside what was typed. */
  async function inDialog(form, button) {
    const body = written(form, button), reads = form.method === "get";
    const address = reads ? `${form.action.split("?")[0]}?${body}` : form.action;
    let came, text;
    try {
      came = await fetch(address, { method: form.method, body: reads ? null : body, headers: { "HX-Request": "true" } });
      if (AWAY.includes(came.status)) throw came;
      text = await came.text();
    } catch { away(form, button); return; }
    if (came.redirected) { location.assign(came.url); return; }
    if (came.headers.has("HX-Refresh")) { location.reload(); return; }
    if (/^\s*<!doctype/i.test(text)) { show(text); return; }
    leaving = false;
    document.documentElement.toggleAttribute("data-sending", false);
    dialog.innerHTML = text;
    ($("[aria-invalid='true'], [data-autofocus]", dialog) ?? $("select, textarea, input:not([type='hidden'])", dialog))?.focus();
  }
  function away(form, button) {
    leaving = false;
    document.documentElement.toggleAttribute("data-sending", false);
    release(form);
    const line = document.createElement("div"), text = document.createElement("p"), again = document.createElement("button");
    line.className = "away";
    line.setAttribute("role", "alert");
    text.textContent = `The server cannot be reached, so ${dialog?.contains(form) ? "this" : "your answer"} is not confirmed. What you typed is kept.`;
    again.type = "button";
    again.className = "second";
    again.textContent = "Try again";
    again.addEventListener("click", () => form.requestSubmit(button));
    line.append(text, again);
    (button?.closest(".option") ?? form).append(line);
    again.focus({ preventScroll: true });
    line.scrollIntoView({ block: "nearest" });
    form.dispatchEvent(new Event("signoff:unsent", { bubbles: true }));
  }
  function release(form) {
    delete form.dataset.sent;
    for (const button of buttonsOf(form)) button.disabled = false;
  }
  addEventListener("pageshow", () => {
    document.documentElement.toggleAttribute("data-sending", false);
    $$("form[data-once]").forEach(release);
    settle();
  });

  const shown = $(".inbox-row > a[aria-current]"), pane = shown?.closest(".inbox");
  if (pane) pane.scrollTop += Math.max(0, shown.getBoundingClientRect().bottom + 8 - pane.getBoundingClientRect().bottom); // it alone, not the page
  /* What is shown once is taken along with one press; also under plain http, where there is no clipboard to ask for. */
  for (const button of $$("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      document.getElementById(button.dataset.copy).select();
      button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
    });
  }
  ($("[data-autofocus]") ?? $("main [aria-invalid='true']"))?.focus();
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", connect);
  else connect();
})();
