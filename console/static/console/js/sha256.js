// SHA-256 over a stream (FIPS 180-4). The browser's own digest wants the whole message at once, which a model file is not.
const K = new Uint32Array(64);
const START = new Uint32Array(8);

(function constants() {
  // First 32 bits of the fractional parts of the cube and square roots of the first primes.
  const fraction = (x) => Math.floor((x - Math.floor(x)) * 2 ** 32) >>> 0;
  let found = 0;
  for (let n = 2; found < 64; n += 1) {
    let prime = true;
    for (let d = 2; d * d <= n; d += 1) if (n % d === 0) { prime = false; break; }
    if (!prime) continue;
    if (found < 8) START[found] = fraction(Math.sqrt(n));
    K[found] = fraction(Math.cbrt(n));
    found += 1;
  }
})();

export class Sha256 {
  constructor() {
    this.state = START.slice();
    this.schedule = new Int32Array(64);
    this.rest = new Uint8Array(64);
    this.restLength = 0;
    this.length = 0;
  }

  /** Take the next bytes (a Uint8Array of any length). */
  update(bytes) {
    this.length += bytes.length;
    let at = 0;
    if (this.restLength) {
      at = Math.min(64 - this.restLength, bytes.length);
      this.rest.set(bytes.subarray(0, at), this.restLength);
      this.restLength += at;
      if (this.restLength < 64) return this;
      this.block(this.rest, 0);
      this.restLength = 0;
    }
    for (; at + 64 <= bytes.length; at += 64) this.block(bytes, at);
    this.rest.set(bytes.subarray(at));
    this.restLength = bytes.length - at;
    return this;
  }

  /** The digest in hex. Nothing may be added afterwards. */
  hex() {
    const bits = this.length;
    const tail = new Uint8Array(this.restLength < 56 ? 64 : 128);
    tail.set(this.rest.subarray(0, this.restLength));
    tail[this.restLength] = 0x80;
    const view = new DataView(tail.buffer);
    view.setUint32(tail.length - 8, Math.floor(bits / 0x20000000));
    view.setUint32(tail.length - 4, (bits << 3) >>> 0);
    for (let at = 0; at < tail.length; at += 64) this.block(tail, at);
    return Array.from(this.state, (part) => part.toString(16).padStart(8, "0")).join("");
  }

  block(bytes, at) {
    const w = this.schedule;
    const s = this.state;
    for (let i = 0; i < 16; i += 1, at += 4) {
      w[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    }
    for (let i = 16; i < 64; i += 1) {
      const x = w[i - 15];
      const y = w[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    let a = s[0] | 0, b = s[1] | 0, c = s[2] | 0, d = s[3] | 0, e = s[4] | 0, f = s[5] | 0, g = s[6] | 0, h = s[7] | 0;
    for (let i = 0; i < 64; i += 1) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + t1) | 0; d = c; c = b; b = a; a = (t1 + t2) | 0;
    }
    s[0] += a; s[1] += b; s[2] += c; s[3] += d; s[4] += e; s[5] += f; s[6] += g; s[7] += h;
  }
}
