// Where the page's data is from: its own elements, in a page that is one file, or the server that serves it.

const TYPES = { float64: Float64Array, float32: Float32Array, int32: Int32Array, uint8: Uint8Array, float16: Uint16Array };

// Values of the 65,536 float16 numbers, by their bits.
let halves = null;
function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 0) halves[bits] = sign * fraction * 2 ** -24;
    else if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
    else halves[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return halves;
}

function unpacked(bits) {
  const table = halfTable(), values = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) values[i] = table[bits[i]];
  return values;
}

// A matrix of numbers, row by row.
export class Matrix {
  constructor(dtype, shape, buffer) {
    this.rows = shape[0];
    this.columns = shape[1] ?? 1;
    const given = new TYPES[dtype](buffer);
    this.values = dtype === "float16" ? unpacked(given) : given;
  }
  at(i, k) {
    return this.values[i * this.columns + k];
  }
  row(i) {
    return this.values.subarray(i * this.columns, (i + 1) * this.columns);
  }
  column(k) {
    const found = new Float32Array(this.rows);
    for (let i = 0; i < this.rows; i++) found[i] = this.at(i, k);
    return found;
  }
}

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// A page that is one file. ask() returns null: there is no one to ask.
function inlineSource(about) {
  const part = (name) => bytesOf(document.getElementById(name).textContent);
  return {
    about,
    bytes: async (name) => part(`array-${name}`).buffer,
    png: async (name) => new Blob([part(`sprite-${name}`)], { type: "image/png" }),
    ask: null,
  };
}

// A page with a server. The token is in the fragment of the first address, which no browser sends, and goes at once.
async function servedSource() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname + "#/");
  }
  const headers = { "X-Token": sessionStorage.getItem("token") ?? "" };
  const get = async (path) => {
    const answer = await fetch(path, { headers });
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  };
  // Asks the server for what needs the model; its errors are sentences.
  const ask = async (what, question = {}) => {
    const body = JSON.stringify(question);
    const answer = await fetch(`api/${what}`, { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };
  return {
    about: await (await get("api/about")).json(),
    bytes: async (name) => (await get(`api/array/${name}`)).arrayBuffer(),
    png: async (name) => (await get(`api/sprite/${name}`)).blob(),
    save: async () => {
      const answer = await fetch("api/save", { method: "POST", headers, body: "{}" });
      if (!answer.ok) throw new Error(await answer.text());
      return answer.blob();
    },
    ask,
  };
}

export async function openSource() {
  const inline = document.getElementById("about");
  const source = inline ? inlineSource(JSON.parse(inline.textContent)) : await servedSource();
  const arrays = new Map(), pictures = new Map();
  // Each array and each sprite is unpacked once, when a screen first asks for it.
  source.array = (name) => {
    const described = source.about.arrays[name];
    if (!described) return Promise.resolve(null);
    if (!arrays.has(name)) {
      arrays.set(name, source.bytes(name).then((buffer) => new Matrix(described.dtype, described.shape, buffer)));
    }
    return arrays.get(name);
  };
  source.sprite = (name) => {
    const described = source.about.sprites[name];
    if (!described) return Promise.resolve(null);
    if (!pictures.has(name)) {
      pictures.set(name, source.png(name).then((blob) => ({ ...described, url: URL.createObjectURL(blob) })));
    }
    return pictures.get(name);
  };
  source.forget = () => { arrays.clear(); pictures.clear(); };
  return source;
}
