// Times in the reader's zone, keys, and no updates for a page that nobody sees. The pages work without it.
"use strict";

const two = (number, length = 2) => String(number).padStart(length, "0");

function local(at, short) {
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const minute = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return short ? minute : `${day} ${minute}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
}

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.getAttribute("datetime"));
    if (!Number.isNaN(at.getTime())) time.textContent = local(at, time.classList.contains("minute"));
  }
}

localTimes(document);
document.addEventListener("htmx:afterSwap", (event) => localTimes(event.detail.elt));

// ── a hidden page closes its stream, and is fresh when it is seen again ──

const sources = new Set();
htmx.createEventSource = (url) => {
  const source = new EventSource(url);
  sources.add(source);
  return source;
};
let slept = false;
document.addEventListener("visibilitychange", () => {
  if (document.hidden && sources.size) {
    for (const source of sources) source.close();
    sources.clear();
    slept = true;
  } else if (!document.hidden && slept) {
    location.reload();
  }
});

// ── keys ──

const rows = () => [...document.querySelectorAll("[data-rows] tbody tr, ul[data-rows] li")];

function move(step) {
  const all = rows();
  if (!all.length) return;
  const here = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[Math.min(Math.max(here + step, 0), all.length - 1)];
  const link = next.querySelector("a");
  if (link) link.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape" && typing) typing.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.getElementById("search");
    if (!search) return;
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "?") {
    const keys = document.getElementById("keys");
    if (keys && !keys.open) keys.showModal();
  }
});
