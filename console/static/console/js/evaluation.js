// A file that is chosen becomes the text of a field, as if it had been pasted.

// More than any config has; the server says where its limit is.
const MAX_BYTES = 512 * 1024;

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-choose]");
  if (button) document.getElementById(button.dataset.choose)?.click();
});

/** The text of a chosen file, put into the field that its input fills. */
async function fill(input) {
  const area = document.getElementById(input.dataset.fills);
  area.value = await input.files[0].slice(0, MAX_BYTES).text();
  input.value = ""; // the same file can be chosen again after it has changed
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

document.addEventListener("change", (event) => {
  const input = event.target;
  if (!input.dataset?.fills || !input.files?.length) return;
  event.stopPropagation(); // the file itself is not sent: only the text counts
  fill(input);
}, true);

// What was chosen or pasted while the page was loading, or kept by the browser over a reload, counts as well.
document.addEventListener("DOMContentLoaded", () => {
  for (const input of document.querySelectorAll("[data-fills]")) {
    const area = document.getElementById(input.dataset.fills);
    if (input.files.length) fill(input);
    else if (area.value.trim()) area.dispatchEvent(new Event("input", { bubbles: true }));
  }
});
