// Texts in the visitor's language, put into the page by the server.
const table = JSON.parse(document.getElementById("words")?.textContent || "{}");

/** The text of `key`, with %(name)s replaced from `values`. */
export function word(key, values = {}) {
  return (table[key] || key).replace(/%\((\w+)\)s/g, (_, name) => String(values[name] ?? "")).replace(/%%/g, "%");
}

/** The token that POSTs carry. */
export function csrfToken() {
  return document.querySelector('meta[name="csrf-token"]')?.content || "";
}

/** Set a readable preference cookie for a year. */
export function setCookie(name, value) {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `${name}=${encodeURIComponent(value)}; Path=/; Max-Age=31536000; SameSite=Lax${secure}`;
}
