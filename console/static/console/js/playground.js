// The chat. It calls the gateway like any application, with a key that lives for minutes and only in this page's memory.
import { csrfToken, word } from "./words.js";

const DEFAULTS = { temperature: 0.7, top_p: 1, max_tokens: 256 };
const RENEW_MS = 60000; // renew the key a minute before it ends

class Chat {
  constructor(root) {
    this.root = root;
    this.histories = [[], []]; // one per model: each goes on from its own answers
    this.sums = { answers: 0, ttft: 0, speed: 0, tokens: 0 };
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
    this.one("model").addEventListener("change", () => this.clear());
    this.one("other").addEventListener("change", () => this.clear());
    document.querySelector('[data-open="chat-code"]').addEventListener("click", () => this.showCode());
  }

  one(name) { return this.root.querySelector(`[data-${name}]`); }

  get isChat() { return this.root.querySelector('[data-mode="chat"]').getAttribute("aria-pressed") === "true"; }

  get path() { return this.isChat ? "/v1/chat/completions" : "/v1/completions"; }

  choose(mode) {
    for (const button of this.root.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    this.one("system").disabled = mode !== "chat";
    this.clear();
  }

  // What is compared: one model, or two that get the same.
  models() { return [this.one("model").value, this.one("other").value].filter(Boolean); }

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
    const models = this.models();
    const row = this.addRow(models.length);
    this.busy(true);
    this.abort = new AbortController();
    await Promise.all(models.map((model, number) => this.ask(model, this.histories[number], text, row)));
    this.abort = undefined;
    this.busy(false);
  }

  async ask(model, turns, text, row) {
    turns.push({ role: "user", content: text });
    const answer = new Answer(this.models().length > 1 ? model : "");
    row.append(answer.root);
    try {
      await this.stream(answer, this.body(model, turns));
    } catch (error) {
      answer.fail(error);
    } finally {
      answer.root.classList.remove("is-streaming");
      if (answer.text) turns.push({ role: "assistant", content: answer.text });
      else turns.pop();
    }
  }

  async stream(answer, body) {
    const key = await this.key();
    const started = performance.now();
    let response;
    try {
      response = await fetch(`${this.root.dataset.gateway}${this.path}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", Authorization: `Bearer ${key}` },
        body: JSON.stringify(body),
        signal: this.abort.signal,
      });
    } catch (error) {
      if (error.name === "AbortError") { answer.finish(started, "stopped"); return; }
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
      if (error.name === "AbortError") { answer.finish(started, "stopped"); return; }
      throw error;
    }
    if (!ended && !answer.reason) throw new Error(word("chat_cut"));
    answer.finish(started, answer.reason);
    this.count(answer);
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

  count(answer) {
    this.sums.answers += 1;
    this.sums.tokens += answer.tokens;
    this.sums.ttft += answer.ttft || 0;
    this.sums.speed += answer.speed || 0;
    const show = (name, text) => { this.root.querySelector(`[data-sum="${name}"]`).textContent = text; };
    show("answers", this.sums.answers);
    show("tokens", this.sums.tokens);
    show("ttft", `${Math.round(this.sums.ttft / this.sums.answers)}\u00a0ms`);
    show("speed", (this.sums.speed / this.sums.answers).toFixed(1));
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
    const body = this.body(this.one("model").value, this.histories[0]);
    if (body.messages && !body.messages.some((message) => message.role === "user")) body.messages.push({ role: "user", content: "Hello" });
    if (body.prompt === "") body.prompt = "Hello";
    const json = JSON.stringify(body, null, 2);
    const quoted = json.replace(/'/g, "'\\''");
    const url = this.root.dataset.gateway;
    document.querySelector('[data-code="curl"]').textContent =
      `curl ${url}${this.path} \\\n  -H "Authorization: Bearer $MILLPOND_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${quoted}'`;
    const python = json.replace(/: true\b/g, ": True").replace(/: false\b/g, ": False").replace(/: null\b/g, ": None");
    document.querySelector('[data-code="python"]').textContent =
      `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${url}/v1", api_key=os.environ["MILLPOND_KEY"])\nstream = client.${this.isChat ? "chat.completions" : "completions"}.create(**${python})\nfor chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].${this.isChat ? 'delta.content or ""' : "text"}, end="")`;
  }
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
      this.body.textContent = this.text;
      this.root.scrollIntoView({ block: "end" });
      this.say(word("chat_streaming"));
    }
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (event.usage) this.usage = event.usage;
  }

  finish(started, reason) {
    this.tokens = this.usage?.completion_tokens ?? this.chunks;
    const seconds = ((this.last || performance.now()) - (this.first || started)) / 1000;
    this.speed = this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : 0;
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
