// Upload of a version: digests in a worker, bytes by tus, over the same public API that everybody uses.
import { call, detailOf, Refusal } from "./api.js";
import { csrfToken, word } from "./words.js";

const PARALLEL = 2;
const CHUNK_BYTES = 32 * 1024 * 1024;
const RETRY_MS = [0, 1000, 3000, 5000, 10000];
const VERIFY_POLL_MS = 1500;
const VERIFY_POLLS = 1200;

/** Bytes for people, in IEC units. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (count >= 1024 && step < units.length - 1) { count /= 1024; step += 1; }
  return `${step === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)}\u00a0${units[step]}`;
}

function span(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return `${Math.ceil(seconds)}\u00a0s`;
  return seconds < 3600 ? `${Math.ceil(seconds / 60)}\u00a0min` : `${(seconds / 3600).toFixed(1)}\u00a0h`;
}

/** Files of an input or a drop as {path, file}; a folder's own name is not part of the path. */
function listed(files) {
  return [...files].filter((file) => file.size > 0 || file.type || file.name.includes(".")).map((file) => ({
    path: (file.webkitRelativePath || file.name).split("/").slice(file.webkitRelativePath ? 1 : 0).join("/"),
    file,
  }));
}

async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return listed(transfer.files);
  const found = [];
  const walk = async (entry, prefix) => {
    if (entry.isFile) {
      found.push({ path: prefix + entry.name, file: await new Promise((done, fail) => entry.file(done, fail)) });
      return;
    }
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((done, fail) => reader.readEntries(done, fail));
      if (!some.length) return;
      for (const child of some) await walk(child, entries.includes(entry) ? prefix : `${prefix}${entry.name}/`);
    }
  };
  for (const entry of entries) await walk(entry, "");
  return found;
}

class Upload {
  constructor(root) {
    this.root = root;
    this.tenant = root.dataset.tenant;
    this.items = [];
    this.paused = false;
    this.running = false;
    this.resume = JSON.parse(document.getElementById("upload-data")?.textContent || "null");
    this.speed = { at: 0, sent: 0, rate: 0 };
    this.bind();
  }

  part(name) { return this.root.querySelector(`[data-${name}]`); }

  bind() {
    const files = this.part("files");
    const folder = this.part("folder");
    this.root.querySelectorAll("[data-pick]").forEach((button) => {
      button.addEventListener("click", () => (button.dataset.pick === "folder" ? folder : files).click());
    });
    for (const input of [files, folder]) {
      input.addEventListener("change", () => this.choose(listed(input.files)));
      this.choose(listed(input.files)); // chosen while the page was loading
    }
    const zone = this.part("drop");
    zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("is-over"); });
    zone.addEventListener("dragleave", () => zone.classList.remove("is-over"));
    zone.addEventListener("drop", async (event) => {
      event.preventDefault();
      zone.classList.remove("is-over");
      this.choose(await dropped(event.dataTransfer));
    });
    this.part("start")?.addEventListener("click", () => this.begin());
    this.part("pause").addEventListener("click", () => this.toggle());
    addEventListener("beforeunload", (event) => { if (this.running && !this.paused) event.preventDefault(); });
    setInterval(() => this.measure(), 1000);
  }

  choose(found) {
    if (this.running || !found.length) return;
    this.fail("");
    if (this.resume) { this.goOn(found); return; }
    this.items = found.map(({ path, file }) => ({ path, file, size: file.size, sent: 0, state: "waiting" }));
    const total = this.items.reduce((sum, item) => sum + item.size, 0);
    this.part("chosen").textContent = word("up_files", { count: this.items.length, size: bytes(total) });
    this.part("start").disabled = false;
  }

  /** A new version: digests, then the declaration, then the bytes. */
  async begin() {
    const model = document.getElementById("upload-model");
    if (!model.reportValidity()) return;
    if (!this.items.length) { this.fail(word("up_none")); return; }
    this.part("start").disabled = true;
    this.running = true;
    this.show(model.value);
    try {
      await this.readAll();
      const version = await this.declare(model.value.trim(), document.getElementById("upload-note").value);
      const page = `${this.root.dataset.pages}${encodeURIComponent(version.model)}/versions/${version.number}/`;
      history.replaceState(null, "", page);
      this.show(`${version.model} v${version.number}`);
      await this.send({ model: version.model, number: version.number, version: version.id, page });
    } catch (error) {
      this.running = false;
      this.fail(error.message, error);
      this.part("start").disabled = false;
    }
  }

  /** An interrupted version: the chosen files must be the declared ones; the server compares their digests. */
  async goOn(found) {
    const byPath = new Map(found.map((one) => [one.path, one.file]));
    const declared = this.resume.files;
    const missing = declared.filter((file) => !file.verified && byPath.get(file.path)?.size !== file.size);
    if (missing.length) {
      this.fail(word("up_missing", { paths: missing.slice(0, 5).map((file) => file.path).join(", ") }));
      return;
    }
    this.items = declared.map((file) => ({
      path: file.path, size: file.size, sha256: file.sha256, file: byPath.get(file.path), url: file.url,
      sent: file.verified ? file.size : file.offset, state: file.verified ? "verified" : "waiting",
    }));
    this.running = true;
    this.show(`${this.resume.model} v${this.resume.number}`);
    this.part("summary").textContent = word("up_same");
    try {
      await this.send(this.resume);
    } catch (error) {
      this.running = false;
      this.fail(error.message, error);
    }
  }

  async readAll() {
    this.stage("read");
    const worker = new Worker(new URL("./hash-worker.js", import.meta.url), { type: "module" });
    try {
      for (const [id, item] of this.items.entries()) {
        this.mark(item, "hashing");
        item.sha256 = await new Promise((done, fail) => {
          worker.onerror = (event) => fail(new Error(event.message));
          worker.onmessage = ({ data }) => {
            if (data.error) fail(new Error(`${item.path}: ${data.error}`));
            else if (data.sha256) done(data.sha256);
            else this.mark(item, "hashing", word("up_hashing", { percent: Math.floor((data.done / item.size) * 100) }));
          };
          worker.postMessage({ id, file: item.file });
        });
        this.mark(item, "waiting");
      }
    } finally {
      worker.terminate();
    }
  }

  /** Declare the files. What is refused by name is shown and left out; the rest goes on. */
  async declare(model, description) {
    const base = `/tenants/${this.tenant}/models`;
    try {
      await call("GET", `${base}/${encodeURIComponent(model)}`);
    } catch (error) {
      if (error.status !== 404) throw error;
      await call("POST", base, { name: model });
    }
    for (;;) {
      const files = this.live().map(({ path, size, sha256 }) => ({ path, size, sha256 }));
      try {
        return await call("POST", `${base}/${encodeURIComponent(model)}/versions`, { files, description });
      } catch (error) {
        const refused = this.live().find((item) => item.path === error.data?.path);
        if (!(error instanceof Refusal) || !refused || files.length === 1) throw error;
        this.mark(refused, "refused", error.message);
      }
    }
  }

  live() { return this.items.filter((item) => item.state !== "refused"); }

  async send(target) {
    this.stage("send");
    this.part("pause").hidden = false;
    const waiting = this.live().filter((item) => item.state !== "verified");
    const lane = async () => { for (let item = waiting.shift(); item; item = waiting.shift()) await this.sendOne(item, target); };
    await Promise.all(Array.from({ length: PARALLEL }, lane));
    this.part("pause").hidden = true;
    this.stage("check");
    await this.finish(target);
  }

  sendOne(item, target) {
    return new Promise((done, fail) => {
      const upload = new tus.Upload(item.file, {
        endpoint: `/api/v1/tenants/${this.tenant}/uploads`,
        uploadUrl: item.url || null,
        chunkSize: CHUNK_BYTES,
        retryDelays: RETRY_MS,
        storeFingerprintForResuming: false, // the server knows every open upload, so any browser can go on
        metadata: { version: target.version, path: item.path, sha256: item.sha256 },
        headers: { "X-CSRFToken": csrfToken() },
        onProgress: (sent) => { item.sent = sent; this.mark(item, "uploading"); },
        onShouldRetry: (error) => { const status = error.originalResponse?.getStatus() || 0; return status === 0 || status === 423 || status >= 500; },
        onSuccess: () => { item.sent = item.size; this.mark(item, "checking"); done(); },
        onError: (error) => {
          const response = error.originalResponse;
          const detail = (response && detailOf(response.getBody())) || word("no_answer");
          this.mark(item, "refused", detail);
          fail(new Error(`${item.path}: ${detail}`));
        },
      });
      item.upload = upload;
      if (this.paused) this.mark(item, "paused");
      else upload.start();
    });
  }

  toggle() {
    this.paused = !this.paused;
    for (const item of this.items) {
      if (!item.upload || ["verified", "checking", "refused"].includes(item.state)) continue;
      if (this.paused) item.upload.abort();
      else item.upload.start();
      this.mark(item, this.paused ? "paused" : "uploading");
    }
    this.part("pause").querySelector("span").textContent = word(this.paused ? "up_resume" : "up_pause");
    this.part("pause").setAttribute("aria-pressed", String(this.paused));
  }

  /** Wait until the server has compared every digest, then hand the version over to the check. */
  async finish(target) {
    const path = `/tenants/${this.tenant}/models/${encodeURIComponent(target.model)}/versions/${target.number}`;
    for (let poll = 0; poll < VERIFY_POLLS; poll += 1) {
      const version = await call("GET", path);
      for (const file of version.files) {
        const item = this.items.find((one) => one.path === file.path);
        if (item && file.state === "verified") this.mark(item, "verified");
      }
      if (version.state !== "uploading") break;
      if (version.files.every((file) => file.state === "verified")) {
        await call("POST", `${path}/finalize`);
        break;
      }
      const lost = version.files.find((file) => file.state === "waiting");
      if (lost) throw new Error(`${lost.path}: ${word("up_refused")}`);
      await new Promise((done) => { setTimeout(done, VERIFY_POLL_MS); });
    }
    this.stage("ready");
    this.part("rate").textContent = word("up_done");
    this.running = false;
    location.assign(target.page);
  }

  // What is seen -----------------------------------------------------------

  show(title) {
    this.part("progress").hidden = false;
    this.part("drop").hidden = true;
    this.root.querySelectorAll("[data-form]").forEach((element) => { element.hidden = true; });
    this.part("title").textContent = title;
    const list = this.part("list");
    list.replaceChildren(...this.items.map((item) => this.row(item)));
    this.items.forEach((item) => this.mark(item, item.state, item.note));
  }

  row(item) {
    const row = document.createElement("tr");
    row.innerHTML = '<td class="mono anywhere"></td><td class="number"></td><td data-state></td><td class="file-bar">'
      + '<svg class="meter" width="100%" height="5" aria-hidden="true"><rect class="track" width="100%" height="5"/><rect class="sent" width="0%" height="5"/></svg>'
      + '<span class="small ink-2" data-note></span></td>';
    row.cells[0].textContent = item.path;
    row.cells[1].textContent = bytes(item.size);
    item.row = row;
    return row;
  }

  mark(item, state, note = "") {
    item.state = state;
    item.note = note;
    if (!item.row) return;
    const glyph = this.part("glyphs").content.querySelector(`[data-glyph="${state}"]`).firstElementChild.cloneNode(true);
    const share = item.size ? item.sent / item.size : 0;
    if (state === "uploading") glyph.querySelector("span").textContent = word("up_sending", { percent: Math.floor(share * 100), speed: bytes(this.speed.rate) });
    if (state === "hashing" && note) glyph.querySelector("span").textContent = note;
    item.row.querySelector("[data-state]").replaceChildren(glyph);
    const bar = item.row.querySelector("rect:last-child");
    bar.setAttribute("width", `${(state === "verified" ? 100 : share * 100).toFixed(1)}%`);
    bar.setAttribute("class", state === "verified" ? "verified" : "sent");
    item.row.querySelector("svg").toggleAttribute("hidden", state === "refused");
    item.row.querySelector("[data-note]").textContent = state === "refused" ? note : "";
    this.totals();
  }

  totals() {
    const live = this.live();
    const total = live.reduce((sum, item) => sum + item.size, 0) || 1;
    const sent = live.reduce((sum, item) => sum + item.sent, 0);
    const verified = live.reduce((sum, item) => sum + (item.state === "verified" ? item.size : 0), 0);
    this.part("bar-sent").setAttribute("width", `${((sent / total) * 100).toFixed(2)}%`);
    this.part("bar-verified").setAttribute("width", `${((verified / total) * 100).toFixed(2)}%`);
    if (sent) this.part("summary").textContent = word("up_total", { sent: bytes(sent), total: bytes(total) });
    this.total = total;
    this.sent = sent;
  }

  measure() {
    if (!this.running || this.paused) return;
    const now = performance.now();
    if (this.speed.at) {
      const fresh = ((this.sent - this.speed.sent) / (now - this.speed.at)) * 1000;
      this.speed.rate = this.speed.rate ? this.speed.rate * 0.7 + fresh * 0.3 : fresh;
    }
    this.speed.at = now;
    this.speed.sent = this.sent || 0;
    const left = this.speed.rate > 0 ? (this.total - this.sent) / this.speed.rate : Infinity;
    if (this.sent && this.sent < this.total && Number.isFinite(left)) this.part("rate").textContent = word("up_left", { span: span(left) });
  }

  stage(name) {
    let passed = true;
    for (const step of this.root.querySelectorAll("[data-stage]")) {
      const now = step.dataset.stage === name;
      if (now) passed = false;
      step.classList.toggle("is-moving", now);
      step.classList.toggle("ink-3", !now && !passed);
      if (now) step.setAttribute("aria-current", "step");
      else step.removeAttribute("aria-current");
    }
  }

  fail(text, error) {
    this.part("error").hidden = !text;
    const request = error?.requestId ? ` (${[error.code, word("request_id", { id: error.requestId })].filter(Boolean).join(", ")})` : "";
    this.part("error-text").textContent = text + request;
    if (text && !this.resume && !this.running) {
      this.root.querySelectorAll("[data-form]").forEach((element) => { element.hidden = false; });
      this.part("drop").hidden = false;
    }
  }
}

document.querySelectorAll("[data-upload]").forEach((root) => new Upload(root));
