// What pages do in a browser with scripts: live updates, how long ago, and keys. Without any of it
// each page works the same, as of when it was loaded.
(() => {
  "use strict";
  const language = document.documentElement.lang;
  const relative = new Intl.RelativeTimeFormat(language, { numeric: "always", style: "short" });
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

  function ago(time) {
    const seconds = (new Date(time.dateTime) - Date.now()) / 1000;
    const [unit, length] = units.find(([, it]) => Math.abs(seconds) >= it) || units[3];
    return relative.format(Math.trunc(seconds / length), unit);
  }
  function tell() {
    document.querySelectorAll("time[datetime]").forEach((it) => { it.title = ago(it); });
    document.querySelectorAll("time[data-relative]").forEach((it) => { it.textContent = ago(it); });
  }

  // --- Live updates
  const state = document.getElementById("live-state");
  const pause = document.getElementById("pause");
  const updates = document.getElementById("updates");
  let paused = false, heard = 0, polled = 0;

  function show() {
    if (!updates || !state) return;
    const age = heard ? Math.round((Date.now() - heard) / 1000) : 0;
    const word = paused ? state.dataset.paused : heard && age < 5 ? state.dataset.live : state.dataset.away;
    const text = age >= 5 || paused ? `${word} · ${relative.format(-age, "second")}` : word;
    if (state.textContent !== text) state.textContent = text;
  }
  // Where the stream is cut the region is fetched now and then; it is the same for all who do.
  function poll() {
    const now = Date.now();
    if (!updates || paused || document.hidden || now - Math.max(heard, polled) < 3000) return;
    polled = now;
    fetch(updates.dataset.region, { headers: { Accept: "text/html" } }).then(async (answer) => {
      if (answer.status === 401) location.reload();
      if (!answer.ok) return;
      const text = await answer.text();
      if (paused) return;
      await htmx.swap({ text, target: document.getElementById("region"), swap: "innerMorph", sourceElement: updates });
      heard = Date.now();
      tell();
      show();
    }).catch(() => {});
  }
  if (updates) {
    heard = polled = Date.now();
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", paused);
      // What came while paused was not kept.
      if (!paused) { heard = polled = 0; poll(); }
      show();
    });
    updates.addEventListener("htmx:sse:before:message", (event) => {
      if (paused) { event.preventDefault(); return; }
      if (event.detail.message.event !== "stale") heard = Date.now();
    });
    updates.addEventListener("htmx:sse:after:message", () => { tell(); show(); });
  }
  setInterval(() => { tell(); show(); poll(); }, 1000);
  tell();

  // --- Keys
  let prefix = "";
  const rows = () => [...document.querySelectorAll("table.rows tbody a, table.rows tbody tr th a")];
  function move(step) {
    const all = [...new Set(rows().filter((it) => it.closest("th")))];
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + step))].focus();
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    if (prefix === "g") {
      prefix = "";
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") prefix = "g";
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "?") document.getElementById("help").showModal();
    else if (event.key === "/") {
      const field = document.getElementById("filter");
      if (field) { event.preventDefault(); field.focus(); }
    }
  });
})();
