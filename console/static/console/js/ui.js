// Menus, dialogs, tabs, copy buttons, theme: one listener each on the document, so that swapped content works too.
import { csrfToken, setCookie, word } from "./words.js";

/** Show a message in the corner; `text`, `code` and `request` are optional. */
export function toast({ tone = "good", title, text = "", code = "", request = "" }) {
  const box = document.getElementById("toasts");
  if (!box) return;
  const item = document.createElement("div");
  item.className = "toast";
  item.dataset.toast = "";
  const mark = document.createElement("span");
  mark.className = `state ${tone}`;
  mark.innerHTML = tone === "bad"
    ? '<svg viewBox="0 0 14 14" aria-hidden="true"><circle cx="7" cy="7" r="5.4"/><path d="m5 5 4 4M9 5 5 9"/></svg>'
    : '<svg viewBox="0 0 14 14" aria-hidden="true"><circle cx="7" cy="7" r="5.4"/><path d="m4.3 7.2 1.9 1.9 3.6-4"/></svg>';
  const body = document.createElement("div");
  body.className = "body";
  const head = document.createElement("div");
  head.className = "strong";
  head.textContent = title;
  body.append(head);
  for (const line of [text, [code, request && word("request_id", { id: request })].filter(Boolean).join(" · ")]) {
    if (!line) continue;
    const row = document.createElement("div");
    row.className = "small ink-2";
    row.textContent = line;
    body.append(row);
  }
  const close = document.createElement("button");
  close.className = "icon-button s20";
  close.type = "button";
  close.dataset.toastClose = "";
  close.setAttribute("aria-label", word("close"));
  close.innerHTML = '<svg class="icon s14" viewBox="0 0 16 16" aria-hidden="true"><path d="m4 4 8 8M12 4l-8 8"/></svg>';
  item.append(mark, body, close);
  box.append(item);
  fade(item, tone);
}

/** A toast goes by itself, but not from under a hand or the keyboard; one that can be taken back stays longer. */
function fade(item, tone) {
  if (tone === "bad") return;
  const lasts = item.querySelector("[data-undo]") ? 10000 : 8000;
  let timer;
  const begin = () => {
    clearTimeout(timer);
    timer = setTimeout(() => (item.matches(":hover, :focus-within") ? begin() : item.remove()), lasts);
  };
  item.addEventListener("pointerleave", begin);
  item.addEventListener("focusout", begin);
  begin();
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copyFrom);
  const text = button.dataset.copy || source?.value || source?.textContent || "";
  try {
    await navigator.clipboard.writeText(text);
    toast({ title: word("copied") });
  } catch {
    toast({ tone: "bad", title: word("copy_failed") });
  }
}

function closeMenus(except) {
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    if (!except || !menu.contains(except)) menu.open = false;
  }
}

function selectTab(tab) {
  const group = tab.closest("[data-tabs]");
  for (const other of group.querySelectorAll('[role="tab"]')) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
}

function openDialog(id) {
  const dialog = document.getElementById(id);
  if (dialog && !dialog.open) dialog.showModal();
}

function onClick(event) {
  const target = event.target;
  closeMenus(target);
  const hit = (selector) => target.closest(selector);
  let found;
  if ((found = hit("[data-open]"))) { event.preventDefault(); openDialog(found.dataset.open); }
  else if ((found = hit("[data-close]"))) found.closest("dialog")?.close();
  else if ((found = hit("[data-copy], [data-copy-from]"))) copy(found);
  else if ((found = hit('[data-tabs] [role="tab"]'))) selectTab(found);
  else if ((found = hit("[data-toast-close]"))) found.closest("[data-toast]").remove();
  else if ((found = hit("[data-sidebar]"))) toggleSidebar(found);
  else if ((found = hit("[data-download]"))) download(found);
  else if (document.querySelector(".side.is-open") && !hit(".side")) toggleSidebar(document.querySelector("[data-sidebar]"), false);
}

/** A chart's table is written when it is opened, from a line of tab-separated cells per row. */
function fillTable(details) {
  const rows = details.dataset.rows.split("\n").map((line) => {
    const row = document.createElement("tr");
    line.split("\t").forEach((text, column) => {
      const cell = row.insertCell();
      cell.textContent = text;
      if (column) cell.className = "number";
    });
    return row;
  });
  details.querySelector("tbody").replaceChildren(...rows);
}

function fillOpenTables() {
  for (const details of document.querySelectorAll("details[data-rows][open]")) fillTable(details);
}

function download(button) {
  const text = document.getElementById(button.dataset.downloadFrom)?.value || "";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${button.dataset.downloadPrefix || ""}${text}\n`], { type: "text/plain" }));
  link.download = button.dataset.download;
  link.click();
  URL.revokeObjectURL(link.href);
}

function toggleSidebar(button, force) {
  const side = document.querySelector(".side");
  const open = side.classList.toggle("is-open", force);
  button.setAttribute("aria-expanded", String(open));
  if (open) side.querySelector("a, summary, button")?.focus();
}

function onKey(event) {
  if (event.key === "Escape") {
    const menu = document.querySelector("details[data-menu][open]");
    if (menu) { menu.open = false; menu.querySelector("summary").focus(); }
    if (document.querySelector(".side.is-open")) toggleSidebar(document.querySelector("[data-sidebar]"), false);
  }
  const tab = event.target.closest?.('[data-tabs] [role="tab"]');
  if (tab && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    const tabs = [...tab.parentElement.querySelectorAll('[role="tab"]')];
    const next = tabs[(tabs.indexOf(tab) + (event.key === "ArrowRight" ? 1 : tabs.length - 1)) % tabs.length];
    selectTab(next);
    next.focus();
  }
}

function onSubmit(event) {
  const form = event.target;
  for (const field of form.querySelectorAll("[data-here]")) field.value = location.pathname + location.search;
  if (form.matches("[data-theme-form]") && event.submitter?.name === "theme") {
    event.preventDefault();
    chooseTheme(form, event.submitter);
    return;
  }
  // A second click cannot send a form twice.
  if (form.method === "post" && event.submitter) setTimeout(() => { event.submitter.disabled = true; }, 0);
}

function chooseTheme(form, button) {
  document.documentElement.dataset.theme = button.value;
  setCookie("millpond_theme", button.value);
  for (const other of form.querySelectorAll("button")) {
    if (other === button) other.setAttribute("aria-current", "true");
    else other.removeAttribute("aria-current");
  }
  const body = new URLSearchParams({ theme: button.value, quiet: "1", csrfmiddlewaretoken: csrfToken() });
  fetch(form.action, { method: "POST", body, credentials: "same-origin" }).catch(() => {}); // the cookie holds it already
  closeMenus();
}

/** A typed name unlocks the button of an irreversible act. */
function onInput(event) {
  const wanted = event.target.dataset?.confirm;
  if (wanted === undefined) return;
  const button = event.target.form.querySelector("[data-confirmed]");
  button.disabled = event.target.value.trim() !== wanted;
}

export function start() {
  document.addEventListener("click", onClick);
  document.addEventListener("keydown", onKey);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("input", onInput);
  document.addEventListener("toggle", fillOpenTables, true);
  document.body.addEventListener("htmx:afterSwap", fillOpenTables);
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit-on-change]")) event.target.form.requestSubmit();
  });
  setCookie("millpond_tz", Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  for (const item of document.querySelectorAll("[data-toast]")) fade(item, item.querySelector(".bad") ? "bad" : "good");
  for (const dialog of document.querySelectorAll("dialog[data-show]")) dialog.showModal();
}
