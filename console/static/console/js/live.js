// Live pages. The socket only says that something changed; the page then fetches itself again (level-triggered), so a
// lost message costs latency and nothing else.
import { word } from "./words.js";

const QUIET_MS = 250; // wait for more hints before fetching
const GAP_MS = 1000; // at most one fetch a second
const SILENCE_MS = 45000; // the server's heartbeat comes every 20 s
const BACKOFF_MS = [1000, 2000, 4000, 8000, 15000];

class Live {
  constructor(path, refreshSeconds) {
    this.url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
    this.refreshMs = refreshSeconds * 1000;
    this.tries = 0;
    this.lastFetch = 0;
    this.waiting = 0;
    this.hasBeenLive = false;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
    document.querySelector("[data-reconnect]")?.addEventListener("click", () => this.connect());
    setInterval(() => this.tick(), 1000);
    if (!document.hidden) this.connect();
  }

  connect() {
    clearTimeout(this.retry);
    this.socket?.close();
    const socket = new WebSocket(this.url);
    this.socket = socket;
    this.heard = Date.now();
    socket.onopen = () => {
      this.tries = 0;
      this.show("live");
      if (this.hasBeenLive) this.changed(); // catch up on what was missed
      this.hasBeenLive = true;
    };
    socket.onmessage = (event) => {
      this.heard = Date.now();
      if (JSON.parse(event.data).type === "changed") this.changed();
    };
    socket.onclose = (event) => {
      if (socket !== this.socket || document.hidden) return;
      if (event.code === 4401 || event.code === 4404) { location.reload(); return; } // signed out, or no member any more
      this.lose();
    };
  }

  lose() {
    const wait = BACKOFF_MS[Math.min(this.tries, BACKOFF_MS.length - 1)];
    this.tries += 1;
    if (this.tries > 1 || this.hasBeenLive) this.show("lost", Math.round(wait / 1000));
    this.retry = setTimeout(() => this.connect(), wait);
  }

  pause() {
    clearTimeout(this.retry);
    const socket = this.socket;
    this.socket = undefined;
    socket?.close();
  }

  resume() {
    this.connect();
    this.changed();
  }

  tick() {
    if (document.hidden) return;
    if (this.socket?.readyState === WebSocket.OPEN && Date.now() - this.heard > SILENCE_MS) this.socket.close();
    if (Date.now() - this.lastFetch > this.refreshMs) this.changed();
  }

  changed() {
    if (this.waiting) return;
    const wait = Math.max(QUIET_MS, this.lastFetch + GAP_MS - Date.now());
    this.waiting = setTimeout(() => {
      this.waiting = 0;
      this.lastFetch = Date.now();
      if (!document.hidden) htmx.trigger(document.body, "changed");
    }, wait);
  }

  show(state, seconds = 0) {
    const badge = document.querySelector("[data-live-state]");
    if (badge) {
      badge.dataset.state = state;
      badge.querySelector(".live-word").textContent = word(state);
    }
    const note = document.querySelector("[data-lost]");
    note.hidden = state !== "lost";
    if (state === "lost") note.querySelector("[data-lost-text]").textContent = word("lost_note", { seconds });
  }
}

export function start() {
  const path = document.body.dataset.live;
  if (!path) return;
  const live = new Live(path, Number(document.body.dataset.refresh || 30));
  live.lastFetch = Date.now();
  live.start();
}
