// Ctrl K: go to any page, endpoint, model or tenant by typing a part of its name.
import { word } from "./words.js";

/** What the sidebar links to can be gone to as well: pages before the places of the list, tenants behind them. */
function addSidebar(list) {
  const option = (link) => {
    const item = document.createElement("li");
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", "false");
    const copy = document.createElement("a");
    copy.href = link.href;
    copy.tabIndex = -1;
    copy.append(...[...link.childNodes].map((node) => node.cloneNode(true)));
    copy.querySelector(".count")?.remove();
    item.append(copy);
    return item;
  };
  list.prepend(...[...document.querySelectorAll("#sidebar .nav a")].map(option));
  list.append(...[...document.querySelectorAll("#sidebar .scope .menu a")].map(option));
}

export function start() {
  const dialog = document.getElementById("palette");
  if (!dialog) return;
  const input = dialog.querySelector("[data-palette-input]");
  const list = dialog.querySelector("[data-palette-list]");
  addSidebar(list);
  const options = [...list.querySelectorAll('[role="option"]')];
  options.forEach((option, index) => { option.id = `palette-${index}`; });
  const none = document.createElement("li");
  none.className = "small ink-3";
  none.textContent = word("no_match");
  none.hidden = true;
  list.append(none);
  let chosen = 0;

  const shown = () => options.filter((option) => !option.hidden);
  const choose = (index) => {
    const visible = shown();
    chosen = visible.length ? (index + visible.length) % visible.length : 0;
    options.forEach((option) => option.setAttribute("aria-selected", String(option === visible[chosen])));
    input.setAttribute("aria-activedescendant", visible[chosen]?.id || "");
    visible[chosen]?.scrollIntoView({ block: "nearest" });
  };
  const filter = () => {
    const wanted = input.value.trim().toLowerCase();
    options.forEach((option) => { option.hidden = !option.textContent.toLowerCase().includes(wanted); });
    none.hidden = shown().length > 0;
    choose(0);
  };
  const open = () => {
    input.value = "";
    filter();
    dialog.showModal();
    input.focus();
  };

  input.addEventListener("input", filter);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      shown()[chosen]?.querySelector("a").click();
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-palette-open]")) open();
    else if (event.target === dialog) dialog.close();
  });
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (!dialog.open) open();
    }
  });
}
