// A file that is chosen becomes the text of a field, as if it had been pasted.

// More than any config has; the server says where its limit is.
const MAX_BYTES = 512 * 1024;

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-choose]");
  if (button) document.getElementById(button.dataset.choose)?.click();
});

document.addEventListener("change", async (event) => {
  const input = event.target;
  const file = input.dataset?.fills && input.files?.[0];
  if (!file) return;
  event.stopPropagation(); // the file itself is not sent: only the text counts
  const area = document.getElementById(input.dataset.fills);
  area.value = await file.slice(0, MAX_BYTES).text();
  input.value = ""; // the same file can be chosen again after it has changed
  area.dispatchEvent(new Event("input", { bubbles: true }));
}, true);
