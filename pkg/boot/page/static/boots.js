// What the page does with JavaScript: rows and steps that change arrive by server-sent events, ages count on, and keys
// move. Without it the same page loads itself again.
"use strict";
(() => {
  const body = document.body, byID = (id) => document.getElementById(id);
  const rows = byID("rows"), boot = byID("boot"), live = byID("live"), form = document.querySelector("form");
  const clock = document.querySelector("#clock time"), said = byID("said");
  // How far the browser's clock is off the server's, in milliseconds.
  let skew = Date.now() - Date.parse(body.dataset.now);

  const two = (n) => String(n).padStart(2, "0");
  // The same as Age in format.go.
  const age = (ms) => {
    const s = Math.max(0, Math.floor(ms / 1000));
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " m " + two(s % 60) + " s";
    if (s < 86400) return Math.floor(s / 3600) + " h " + two(Math.floor(s / 60) % 60) + " m";
    return Math.floor(s / 86400) + " d " + Math.floor(s / 3600) % 24 + " h";
  };
  let local = false; // times are those of the browser's zone
  const moment = (d) => {
    const z = local ? d : new Date(d.getTime() + d.getTimezoneOffset() * 60000);
    const month = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ")[z.getMonth()];
    return z.getDate() + " " + month + " " + [z.getHours(), z.getMinutes(), z.getSeconds()].map(two).join(":");
  };
  const tick = () => {
    const now = Date.now() - skew;
    const set = (t, text) => { if (t.textContent !== text) t.textContent = text; };
    if (!body.classList.contains("stale")) {
      clock.dateTime = new Date(now).toISOString();
      for (const t of document.querySelectorAll("time[data-age]")) set(t, age(now - Date.parse(t.dateTime)));
    }
    for (const t of document.querySelectorAll("time[data-moment]")) set(t, moment(new Date(t.dateTime)));
  };

  // A text that becomes a button, by which somebody chooses; the browser remembers it.
  const choice = (id, names, change) => {
    const b = document.createElement("button");
    const set = (name) => {
      b.textContent = name;
      try { localStorage.setItem("boots." + id, name); } catch { /* it forgets */ }
      change(name);
    };
    b.type = "button";
    b.addEventListener("click", () => set(names[(names.indexOf(b.textContent) + 1) % names.length]));
    byID(id).replaceWith(b);
    let kept;
    try { kept = localStorage.getItem("boots." + id); } catch { /* it has none */ }
    set(names.includes(kept) ? kept : names[0]);
  };

  const parse = (html) => {
    const t = document.createElement("template");
    t.innerHTML = html;
    return t.content;
  };
  const put = (id, html) => {
    if (html === undefined) return;
    const at = byID(id), focused = at.contains(document.activeElement) && document.activeElement.getAttribute("href");
    at.replaceChildren(parse(html));
    if (focused) for (const a of at.querySelectorAll("a")) if (a.getAttribute("href") === focused) a.focus();
  };

  // Changes of a state are read aloud to those who do not see them.
  const announce = (news) => {
    if (news.length) said.textContent = news.slice(0, 3).join(", ") + (news.length > 3 ? " and " + (news.length - 3) + " more" : "");
  };

  let first = true; // of the rows that a stream sends, which are on the page already
  const showList = (update) => {
    skew = Date.now() - update.now;
    const have = new Map(), news = [];
    for (const tr of rows.children) have.set(tr.dataset.id, tr);
    for (const [id, html] of Object.entries(update.rows)) {
      const tr = parse(html).firstElementChild, was = have.get(id);
      if (was) {
        const focused = was.contains(document.activeElement), state = tr.classList[0];
        if (was.classList[0] !== state) news.push(tr.querySelector(".who a").textContent + " is " + state);
        was.replaceWith(tr);
        if (focused) tr.querySelector("a").focus({ preventScroll: true });
      }
      if (!first) tr.classList.add("fresh");
      have.set(id, tr);
    }
    let at = rows.firstElementChild;
    for (const id of update.order) {
      const tr = have.get(id);
      have.delete(id);
      if (tr === at) at = at.nextElementSibling;
      else rows.insertBefore(tr, at);
    }
    for (const tr of have.values()) tr.remove();
    rows.parentElement.hidden = update.order.length === 0;
    put("heading", update.heading);
    put("parts", update.parts);
    announce(news);
    first = false;
    tick();
  };

  const toggled = new Map(); // steps that were opened or closed by hand
  const showBoot = (update) => {
    skew = Date.now() - update.now;
    const focused = document.activeElement && document.activeElement.closest("details");
    const key = focused && focused.dataset.key;
    const log = boot.querySelector(".syslog ol");
    const atEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 4, scroll = log ? log.scrollTop : 0;
    const stateOf = () => (boot.querySelector(".title .state") || {}).textContent, was = stateOf();
    boot.replaceChildren(parse(update.html));
    if (stateOf() !== was) announce(["It is " + stateOf()]);
    for (const d of boot.querySelectorAll("details")) {
      if (toggled.has(d.dataset.key)) d.open = toggled.get(d.dataset.key);
      if (d.dataset.key === key) d.firstElementChild.focus({ preventScroll: true });
    }
    endOfLog(atEnd, scroll);
    tick();
  };
  const endOfLog = (atEnd, scroll) => {
    const log = boot.querySelector(".syslog ol");
    if (log) log.scrollTop = atEnd ? log.scrollHeight : scroll;
  };
  if (boot) {
    boot.addEventListener("click", (e) => {
      const d = e.target.closest("summary") && e.target.closest("details");
      if (d) toggled.set(d.dataset.key, !d.open);
    });
    endOfLog(true, 0);
  }

  // A browser opens few connections to a server: tabs that nobody sees leave them to others.
  let source, heard;
  const listen = (url) => {
    if (source) source.close();
    heard = url;
    if (document.hidden) return;
    first = true;
    source = new EventSource(url);
    const on = () => {
      body.classList.remove("stale");
      if (live.className !== "on") live.textContent = "live";
      live.className = "on";
    };
    source.addEventListener("list", (e) => { on(); showList(JSON.parse(e.data)); });
    source.addEventListener("machine", (e) => { on(); showBoot(JSON.parse(e.data)); });
    source.addEventListener("alive", on);
    source.onopen = on;
    source.onerror = () => {
      if (live.className !== "off") live.textContent = "not live: connecting";
      live.className = "off";
      body.classList.add("stale");
      // A refusal ends an EventSource for good.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (heard === url) listen(url); }, 5000);
    };
  };
  document.addEventListener("visibilitychange", () => {
    if (heard) listen(heard);
  });
  if (body.dataset.live) listen(body.dataset.live);
  setInterval(tick, 1000);

  // The list follows what is typed.
  if (form) {
    let timer;
    const follow = () => {
      const query = new URLSearchParams(new FormData(form));
      for (const [name, value] of [...query]) if (!value) query.delete(name);
      const text = query.size ? "?" + query : "";
      history.replaceState(null, "", location.pathname + text);
      listen("boots/live" + text);
    };
    form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(follow, 200); });
    form.addEventListener("submit", (e) => { e.preventDefault(); clearTimeout(timer); follow(); });
    form.querySelector("button").hidden = true;
  }

  // Keys.
  const move = (by) => {
    const all = [...document.querySelectorAll(rows ? "#rows .who a" : "details > summary")];
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    all[Math.min(all.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))].focus();
  };
  let keys = true;
  choice("keys", ["keys on", "keys off"], (name) => { keys = name === "keys on"; });
  choice("zone", ["UTC", "local"], (name) => { local = name === "local"; tick(); });
  document.addEventListener("keydown", (e) => {
    if (!keys || e.ctrlKey || e.metaKey || e.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName);
    if (typing) {
      if (e.key === "Escape") e.target.blur();
      return;
    }
    switch (e.key) {
      case "/": if (!form) return; form.q.focus(); form.q.select(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "u": if (!boot) return; location.href = "../boots"; break;
      case "s": case "a": {
        if (!rows) return;
        const a = document.querySelector(e.key === "s" ? ".chip.stuck" : ".chips a");
        if (a) a.click();
        break;
      }
      case "e": {
        if (!boot) return;
        const all = [...boot.querySelectorAll("details")], open = !all.every((d) => d.open);
        for (const d of all) { d.open = open; toggled.set(d.dataset.key, open); }
        break;
      }
      default: return;
    }
    e.preventDefault();
  });
  tick();
})();
