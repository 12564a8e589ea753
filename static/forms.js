/* What forms do beyond HTML: keep what is typed while it is typed, and rows in place. Everything works without. */
"use strict";
(() => {
  const meta = document.querySelector('meta[name="csrf-token"]'), csrf = meta?.content ?? "";
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const WAIT = 700;
  const HELD = `signoff-draft ${meta?.dataset.home ?? ""} `;  // what was typed in one tenant comes up in no other
  const held = {  // in the tab's storage, while the server does not take it; a browser may refuse that
    get(address) { try { return JSON.parse(sessionStorage.getItem(HELD + address)); } catch { return null; } },
    set(address, value) { try { sessionStorage.setItem(HELD + address, JSON.stringify(value)); } catch { /* full, or off */ } },
    drop(address) { try { sessionStorage.removeItem(HELD + address); } catch { /* off */ } },
  };
  const open = new Map();  // by address of the draft: { form: the one typed in last, timer }

  /* All forms of one draft, without secrets. Of what several have (the comment, the option) the one typed in last. */
  function typed(address, last) {
    const forms = $$("form[data-draft]").filter((form) => form.dataset.draft === address && form !== last);
    const body = new URLSearchParams();
    for (const form of [...forms, last]) {
      for (const [name, value] of new FormData(form)) {
        if (name.endsWith("*") || name === "csrf" || typeof value !== "string") continue;
        if (["comment", "option", "revision"].includes(name)) body.set(name, value);
        else body.append(name, value);
      }
    }
    return body;
  }

  let flying = new AbortController();  // saves under way are overtaken when the form itself is sent
  async function send(address, body, keepalive = false) {
    const headers = { "X-CSRF-Token": csrf, "HX-Request": "true" };
    const answer = await fetch(address, { method: "POST", headers, body, keepalive, signal: flying.signal });
    if (!answer.ok) throw answer;
  }

  async function save(address, leaving = false) {
    const { form, timer } = open.get(address);
    clearTimeout(timer);
    open.delete(address);
    const body = typed(address, form), { person } = form.dataset;
    if (leaving) held.set(address, { person, body: body.toString() });
    try {
      await send(address, body, leaving && body.toString().length < 60_000);
      held.drop(address);
      say(form, "");
    } catch (answer) {
      if ([413, 429].includes(answer.status)) say(form, "That is too much to be kept while you type. Send it before you leave.");
      if (answer.name === "AbortError" || answer.status >= 400 && answer.status !== 401 && answer.status !== 403) return;
      held.set(address, { person, body: body.toString() });
      say(form, answer.status ? "You are signed out. What you type is kept in this tab: sign in again, and it is here."
        : $(".away") ? "" : "The server does not answer. What you type is kept in this tab.");
    }
  }

  function say(form, text) {
    let line = $(".draft-state", form);
    if (!line && !text) return;
    if (!line) {
      line = document.createElement("p");
      line.className = "draft-state";
      line.setAttribute("role", "status");
      ($(".decide-end", form) ?? form).before(line);
    }
    line.textContent = text;
  }

  function touch(form) {
    const address = form?.dataset?.draft;
    if (!address || form.dataset.sent === "yes") return;
    clearTimeout(open.get(address)?.timer);
    open.set(address, { form, timer: setTimeout(save, WAIT, address) });
  }

  addEventListener("input", ({ target }) => touch(target.form));
  addEventListener("change", ({ target }) => touch(target.form));
  const leave = () => { for (const address of [...open.keys()]) save(address, true); };
  addEventListener("pagehide", leave);
  document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); });

  /* A date that is typed halfway would be sent as nothing. */
  addEventListener("submit", (event) => {
    const form = event.target;
    const half = $$("input", form).find((input) => input.validity.badInput);
    if (half) {
      event.preventDefault();
      event.stopImmediatePropagation();
      half.reportValidity();
      return;
    }
    const address = form.dataset.draft;
    if (address) {  // the page that takes the form keeps what it refuses
      clearTimeout(open.get(address)?.timer);
      open.delete(address);
      held.drop(address);
      flying.abort();
    } else if (open.size) {  // signing out, say: first what was typed
      event.preventDefault();
      event.stopImmediatePropagation();
      Promise.all([...open.keys()].map((key) => save(key))).then(() => form.requestSubmit(event.submitter));
    }
  }, true);

  addEventListener("signoff:unsent", ({ target }) => { flying = new AbortController(); touch(target); });

  /* Rows: htmx swaps them; the one that came takes the focus, or the button when one went. */
  let pressed = null;
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("button[data-rows]");
    if (button) pressed = { rows: button.dataset.rows, added: button.name === "form-add" };
  });
  document.addEventListener("htmx:after:swap", ({ detail }) => {
    const rows = pressed && detail?.ctx?.target?.id === pressed.rows && document.getElementById(pressed.rows);
    if (!rows) return;
    const last = $$(":scope > .group-fields > .entries > .entry", rows).at(-1);
    const first = last && $("input:not([type=hidden]), select, textarea", last);
    (pressed.added && first ? first : $(":scope > .group-fields > .entry-add", rows))?.focus();
    pressed = null;
    touch(rows.closest("form"));
  });

  /* When none comes, the draft's own save says why. */
  document.addEventListener("htmx:response:error", ({ detail }) => {
    if (detail?.ctx?.sourceElement?.dataset.rows) touch(detail.ctx.sourceElement.form);
  });

  /* What this tab kept while nobody was signed in. */
  for (const form of $$("form[data-draft]")) {
    const { draft, person } = form.dataset;
    const kept = held.get(draft);
    if (!kept) continue;
    held.drop(draft);
    if (kept.person === person) send(draft, new URLSearchParams(kept.body)).then(
      () => location.replace(location.href), () => held.set(draft, kept),
    );
  }
})();
