// The chat. It calls the gateway like any application, with a key that lives for minutes and only in this page's memory.
import { csrfToken, word } from "./words.js";

const DEFAULTS = { temperature: 0.7, top_p: 1, max_tokens: 256 };
const RENEW_MS = 60000; // renew the key a minute before it ends
const REVISION = "x-millpond-revision";
const LEAST_SECONDS = 0.005; // pieces that came closer together say nothing of a speed

const noSums = () => ({ answers: 0, ttft: 0, timed: 0, speed: 0, tokens: 0 });

class Chat {
  constructor(root) {
    this.root = root;
    this.histories = [[], []]; // one per side: each goes on from its own answers
    this.one("form").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.one("text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.send(); }
    });
    this.one("stop").addEventListener("click", () => this.abort?.abort());
    this.one("clear").addEventListener("click", () => this.clear());
    this.one("reset").addEventListener("click", () => this.reset());
    for (const range of root.querySelectorAll("[data-range]")) {
      const number = root.querySelector(`[data-number="${range.dataset.range}"]`);
      range.addEventListener("input", () => { number.value = range.value; });
      number.addEventListener("input", () => { range.value = number.value; });
    }
    for (const button of root.querySelectorAll("[data-mode]")) {
      button.addEventListener("click", () => this.choose(button.dataset.mode));
    }
    for (const name of ["model", "other"]) this.one(name).addEventListener("change", () => { this.clear(); this.start(); });
    document.querySelector('[data-open="chat-code"]').addEventListener("click", () => this.showCode());
    this.start();
  }

  // Figures are of the sides that are chosen now.
  start() {
    const sides = this.sides();
    this.sums = [noSums(), noSums()];
    for (const part of this.root.querySelectorAll("[data-pair]")) part.hidden = sides.length < 2;
    for (const head of this.root.querySelectorAll("[data-side]")) head.textContent = sides[head.dataset.side]?.label || "";
    this.showSums();
  }

  one(name) { return this.root.querySelector(`[data-${name}]`); }

  get isChat() { return this.root.querySelector('[data-mode="chat"]').getAttribute("aria-pressed") === "true"; }

  get path() { return this.isChat ? "/v1/chat/completions" : "/v1/completions"; }

  choose(mode) {
    for (const button of this.root.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    this.one("system").disabled = mode !== "chat";
    this.clear();
  }

  // What is asked: one model or revision, or two that get the same.
  sides() {
    return ["model", "other"].map((name) => this.one(name).selectedOptions[0]).filter((option) => option?.value).map((option) => {
      const { name, revision } = option.dataset;
      return { model: name, revision, label: revision ? `${name} ${revision}` : name };
    });
  }

  headers(side) { return side.revision ? { [REVISION]: side.revision } : {}; }

  body(model, turns) {
    const system = this.one("system").value.trim();
    const asked = this.isChat
      ? { messages: [...(system ? [{ role: "system", content: system }] : []), ...turns] }
      : { prompt: turns.length ? turns[turns.length - 1].content : "" };
    const body = { model, ...asked, stream: true, stream_options: { include_usage: true } };
    for (const name of Object.keys(DEFAULTS)) {
      const value = Number(this.root.querySelector(`[data-number="${name}"]`).value);
      if (Number.isFinite(value)) body[name] = value;
    }
    const seed = this.one("seed").value;
    if (seed !== "") body.seed = Number(seed);
    return body;
  }

  async key() {
    if (this.held && Date.parse(this.held.expires_at) - Date.now() > RENEW_MS) return this.held.key;
    this.minting ??= this.mint().finally(() => { this.minting = undefined; }); // two sides share one
    return this.minting;
  }

  async mint() {
    const response = await fetch(this.root.dataset.keyUrl, { method: "POST", credentials: "same-origin", headers: { "X-CSRFToken": csrfToken() } });
    if (!response.ok) throw new Error(word("chat_no_key"));
    this.held = await response.json();
    return this.held.key;
  }

  async send() {
    const text = this.one("text").value.trim();
    if (!text || this.abort) return;
    this.one("text").value = "";
    this.addUser(text);
    const sides = this.sides();
    const row = this.addRow(sides.length);
    this.busy(true);
    this.abort = new AbortController();
    await Promise.all(sides.map((side, number) => this.ask(side, number, text, row, sides.length > 1)));
    this.abort = undefined;
    this.busy(false);
  }

  async ask(side, number, text, row, isPair) {
    const turns = this.histories[number];
    turns.push({ role: "user", content: text });
    const answer = new Answer(isPair || side.revision ? side.label : "");
    row.append(answer.root);
    try {
      if (await this.stream(answer, side, this.body(side.model, turns))) this.count(answer, number);
    } catch (error) {
      answer.fail(error);
    } finally {
      answer.root.classList.remove("is-streaming");
      if (answer.text) turns.push({ role: "assistant", content: answer.text });
      else turns.pop();
    }
  }

  // True when the answer came whole.
  async stream(answer, side, body) {
    const key = await this.key();
    const started = performance.now();
    let response;
    try {
      response = await fetch(`${this.root.dataset.gateway}${this.path}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", Authorization: `Bearer ${key}`, ...this.headers(side) },
        body: JSON.stringify(body),
        signal: this.abort.signal,
      });
    } catch (error) {
      if (error.name === "AbortError") { answer.finish(started, "stopped"); return false; }
      throw new Error(word("chat_unreachable", { url: this.root.dataset.gateway }));
    }
    if (!response.ok) {
      const problem = await response.json().catch(() => null);
      throw new Error([problem?.error?.message || `HTTP ${response.status}`, problem?.error?.code].filter(Boolean).join(" · "));
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let ended = false;
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        rest += value;
        const events = rest.split(/\r?\n\r?\n/);
        rest = events.pop();
        for (const event of events) {
          const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
          if (data === "[DONE]") { ended = true; continue; }
          if (data) answer.take(JSON.parse(data), started);
        }
      }
    } catch (error) {
      if (error.name === "AbortError") { answer.finish(started, "stopped"); return false; }
      throw error;
    }
    if (!ended && !answer.reason) throw new Error(word("chat_cut"));
    answer.finish(started, answer.reason);
    return true;
  }

  addUser(text) {
    this.one("turns").querySelector(".empty")?.closest(".page")?.remove();
    const row = document.createElement("div");
    row.className = "turn-user";
    const who = document.createElement("span");
    who.className = "me";
    who.textContent = this.root.dataset.initials;
    const body = document.createElement("div");
    body.textContent = text;
    row.append(who, body);
    this.one("turns").append(row);
    row.scrollIntoView({ block: "end" });
  }

  addRow(count) {
    const row = document.createElement("div");
    row.className = count > 1 ? "turn-pair" : "";
    this.one("turns").append(row);
    return row;
  }

  busy(on) {
    this.one("stop").hidden = !on;
    this.one("send").disabled = on;
    if (!on) this.one("text").focus();
  }

  count(answer, number) {
    const sums = this.sums[number];
    sums.answers += 1;
    sums.tokens += answer.tokens;
    sums.ttft += answer.ttft || 0;
    sums.timed += answer.speed ? 1 : 0;
    sums.speed += answer.speed;
    this.showSums();
  }

  showSums() {
    this.sums.forEach((sums, number) => {
      const show = (name, text) => { this.root.querySelectorAll(`[data-sum="${name}"]`)[number].textContent = text; };
      show("answers", sums.answers);
      show("tokens", sums.tokens);
      show("ttft", sums.answers ? `${Math.round(sums.ttft / sums.answers)}\u00a0ms` : "–");
      show("speed", sums.timed ? (sums.speed / sums.timed).toFixed(1) : "–");
    });
  }

  clear() {
    this.abort?.abort();
    this.histories = [[], []];
    this.one("turns").replaceChildren();
  }

  reset() {
    for (const [name, value] of Object.entries(DEFAULTS)) {
      for (const field of this.root.querySelectorAll(`[data-number="${name}"], [data-range="${name}"]`)) field.value = value;
    }
    this.one("system").value = "";
    this.one("seed").value = "";
  }

  showCode() {
    const sides = this.sides();
    const asked = sides.map((side, number) => {
      const body = this.body(side.model, this.histories[number]);
      if (body.messages && !body.messages.some((message) => message.role === "user")) body.messages.push({ role: "user", content: "Hello" });
      if (body.prompt === "") body.prompt = "Hello";
      return { side, body };
    });
    const url = this.root.dataset.gateway;
    document.querySelector("[data-code-note]").hidden = !sides.some((side) => side.revision);
    document.querySelector('[data-code="curl"]').textContent = asked.map(({ side, body }) => this.curl(url, side, body)).join("\n\n");
    const head = `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${url}/v1", api_key=os.environ["MILLPOND_API_KEY"])\n`;
    document.querySelector('[data-code="python"]').textContent = head + asked.map(({ side, body }) => this.python(side, body)).join("\n\n");
  }

  curl(url, side, body) {
    const quoted = JSON.stringify(body, null, 2).replace(/'/g, "'\\''");
    const named = side.revision ? `  -H "${REVISION}: ${side.revision}" \\\n` : "";
    return `curl ${url}${this.path} \\\n  -H "Authorization: Bearer $MILLPOND_API_KEY" \\\n${named}  -H "Content-Type: application/json" \\\n  -d '${quoted}'`;
  }

  python(side, body) {
    const call = `client.${this.isChat ? "chat.completions" : "completions"}.create`;
    const named = side.revision ? `, extra_headers={"${REVISION}": "${side.revision}"}` : "";
    const piece = `chunk.choices[0].${this.isChat ? 'delta.content or ""' : "text"}`;
    return `stream = ${call}(**${literal(body)}${named})\nfor chunk in stream:\n    if chunk.choices:\n        print(${piece}, end="")`;
  }
}

// A value as Python writes it.
function literal(value, indent = "") {
  const more = `${indent}    `;
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  const parts = Object.entries(value).map(([name, part]) => (Array.isArray(value) ? "" : `${JSON.stringify(name)}: `) + literal(part, more));
  return parts.length ? `${open}\n${parts.map((part) => more + part + ",\n").join("")}${indent}${close}` : open + close;
}

class Answer {
  constructor(model) {
    this.root = document.createElement("div");
    this.root.className = "turn-answer is-streaming";
    if (model) {
      const head = document.createElement("div");
      head.className = "small ink-3 mono";
      head.textContent = model;
      this.root.append(head);
    }
    this.body = document.createElement("div");
    this.body.className = "text";
    this.facts = document.createElement("div");
    this.facts.className = "turn-facts";
    this.root.append(this.body, this.facts);
    this.text = "";
    this.chunks = 0;
    this.tokens = 0;
  }

  take(event, started) {
    if (event.error) throw new Error([event.error.message, event.error.code].filter(Boolean).join(" · "));
    const choice = event.choices?.[0];
    const piece = choice?.delta?.content || choice?.text || "";
    if (piece) {
      if (!this.first) { this.first = performance.now(); this.ttft = this.first - started; }
      this.last = performance.now();
      this.chunks += 1;
      this.text += piece;
      // Once a frame: drawing every piece of one side would hold up the other, and its TTFT would show it.
      this.frame ??= requestAnimationFrame(() => { this.draw(); this.say(word("chat_streaming")); });
    }
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (event.usage) this.usage = event.usage;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    if (this.body.textContent === this.text) return;
    this.body.textContent = this.text;
    this.root.scrollIntoView({ block: "end" });
  }

  finish(started, reason) {
    this.draw();
    this.tokens = this.usage?.completion_tokens ?? this.chunks;
    const seconds = ((this.last || performance.now()) - (this.first || started)) / 1000;
    this.speed = this.tokens > 1 && seconds >= LEAST_SECONDS ? (this.tokens - 1) / seconds : 0;
    this.total = performance.now() - started;
    this.say({ stopped: word("chat_stopped"), length: word("chat_length") }[reason] || "");
  }

  say(note) {
    const parts = [];
    if (this.ttft !== undefined) parts.push(["TTFT ", `${Math.round(this.ttft)}`, "\u00a0ms"]);
    if (this.speed) parts.push(["", this.speed.toFixed(1), `\u00a0${word("chat_per_second")}`]);
    if (this.usage) parts.push([word("chat_in_out", { in: this.usage.prompt_tokens, out: this.usage.completion_tokens }), "", ""]);
    if (this.total) parts.push(["E2E ", (this.total / 1000).toFixed(2), "\u00a0s"]);
    this.facts.replaceChildren(...parts.map(([before, value, after]) => {
      const fact = document.createElement("span");
      const strong = document.createElement("b");
      strong.textContent = value;
      fact.append(before, strong, after);
      return fact;
    }));
    if (note) {
      const tail = document.createElement("span");
      tail.className = "is-moving";
      tail.textContent = note;
      this.facts.append(tail);
    }
  }

  fail(error) {
    this.draw();
    const note = document.createElement("div");
    note.className = "note bad";
    note.setAttribute("role", "alert");
    const title = document.createElement("span");
    title.className = "strong";
    title.textContent = word("chat_failed");
    const detail = document.createElement("span");
    detail.textContent = error.message;
    note.append(title, detail);
    this.root.append(note);
  }
}

document.querySelectorAll("[data-chat]").forEach((root) => new Chat(root));
