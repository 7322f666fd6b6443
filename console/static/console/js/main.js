// Every page of the signed-in console.
import * as live from "./live.js";
import * as palette from "./palette.js";
import * as ui from "./ui.js";
import { word } from "./words.js";

/** Morphing keeps what the visitor opened and what they are typing. */
function keepWhatIsOpen() {
  if (typeof Idiomorph === "undefined") return;
  Idiomorph.defaults.ignoreActiveValue = true;
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(name === "open" && (node.tagName === "DETAILS" || node.tagName === "DIALOG"))
    && name !== "data-held"
    && !(node.closest?.("[data-tabs]") && ["hidden", "aria-selected", "tabindex"].includes(name));
}

/** A log shows its end until the visitor scrolls up, and follows again at the end. */
function followLogs() {
  const toEnd = () => {
    for (const log of document.querySelectorAll("[data-log]")) if (log.dataset.held !== "true") log.scrollTop = log.scrollHeight;
  };
  document.addEventListener("scroll", (event) => {
    const log = event.target;
    if (log.dataset?.log !== undefined) log.dataset.held = String(log.scrollHeight - log.scrollTop - log.clientHeight > 24);
  }, true);
  document.body.addEventListener("htmx:afterSettle", toEnd);
  toEnd();
}

function onHtmxErrors() {
  document.body.addEventListener("toast", (event) => ui.toast(event.detail));
  document.body.addEventListener("htmx:sendError", (event) => {
    if (event.detail.elt.id !== "live") ui.toast({ tone: "bad", title: word("no_answer"), text: word("no_answer_text") });
  });
  document.body.addEventListener("htmx:responseError", (event) => {
    const { xhr, elt } = event.detail;
    if (elt.id === "live") {
      // What the page showed is gone, or the visitor may not see it any more: let the server say so.
      if ([401, 403, 404].includes(xhr.status)) location.reload();
      return;
    }
    if (!xhr.getResponseHeader("HX-Trigger")) {
      ui.toast({ tone: "bad", title: word("failed"), text: `HTTP ${xhr.status}`, request: xhr.getResponseHeader("X-Request-Id") || "" });
    }
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    const dialog = event.target.matches?.("dialog") ? event.target : event.target.querySelector?.("dialog[data-show]");
    if (dialog?.dataset.show !== undefined && !dialog.open) dialog.showModal();
  });
}

ui.start();
palette.start();
keepWhatIsOpen();
onHtmxErrors();
followLogs();
live.start();
