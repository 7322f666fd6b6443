// Calls of the public REST API with the visitor's session.
import { csrfToken, word } from "./words.js";

/** What the server refused, in its own words. */
export class Refusal extends Error {
  constructor(status, problem, requestId) {
    super(problem?.detail || word("no_answer"));
    this.status = status;
    this.code = problem?.code || "";
    this.data = problem?.data || {};
    this.requestId = problem?.request_id || requestId || "";
  }
}

/** Call `/api/v1` + path; returns the parsed body. Throws a Refusal. */
export async function call(method, path, body) {
  let response;
  try {
    response = await fetch(`/api/v1${path}`, {
      method,
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-CSRFToken": csrfToken() },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refusal(0, null);
  }
  const isJson = (response.headers.get("Content-Type") || "").includes("json");
  const parsed = isJson ? await response.json() : null;
  if (!response.ok) throw new Refusal(response.status, parsed, response.headers.get("X-Request-Id"));
  return parsed;
}

/** The sentence in a problem document that came as text, or "". */
export function detailOf(text) {
  try {
    return JSON.parse(text).detail || "";
  } catch {
    return "";
  }
}
