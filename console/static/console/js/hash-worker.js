// Reads files slice by slice and answers with their SHA-256, so that the page stays responsive.
import { Sha256 } from "./sha256.js";

const SLICE_BYTES = 8 * 1024 * 1024;

self.onmessage = async ({ data: { id, file } }) => {
  try {
    const sum = new Sha256();
    for (let at = 0; at < file.size; at += SLICE_BYTES) {
      sum.update(new Uint8Array(await file.slice(at, at + SLICE_BYTES).arrayBuffer()));
      self.postMessage({ id, done: Math.min(at + SLICE_BYTES, file.size) });
    }
    self.postMessage({ id, sha256: sum.hex() });
  } catch (error) {
    self.postMessage({ id, error: String(error?.message || error) }); // the file changed or cannot be read
  }
};
