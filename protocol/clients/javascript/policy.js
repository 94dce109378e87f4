// A policy that `rookery export --format onnx` wrote, inside a game: without a run, an actor or Python. What computes it
// is a runtime of ONNX of your choice, `onnxruntime-web` (a browser, Node) or `onnxruntime-node`, which is handed in:
//
//     const policy = await Policy.load(ort, "cartpole.onnx");
//     const action = await policy.act(observation);
//     ...
//     policy.endEpisode();

import { Fault, pack, unpack } from "./arrays.js";

/** ONNX's name of a type -> NumPy's, and the array that a runtime takes. */
const TYPES = {
  bool: ["|b1", Uint8Array],
  int8: ["|i1", Int8Array],
  int16: ["<i2", Int16Array],
  int32: ["<i4", Int32Array],
  int64: ["<i8", BigInt64Array],
  uint8: ["|u1", Uint8Array],
  uint16: ["<u2", Uint16Array],
  uint32: ["<u4", Uint32Array],
  uint64: ["<u8", BigUint64Array],
  float16: ["<f2", globalThis.Float16Array ?? Uint16Array],
  float32: ["<f4", Float32Array],
  float64: ["<f8", Float64Array],
};

const LAST = new WeakMap(); // session -> what is computed there last: onnxruntime-web takes one thing at a time

function unusable(reason) {
  return new Fault("policy", reason);
}

/** One agent's; several may share a session, as each remembers for itself. */
export class Policy {
  #ort;
  #session;
  #seen;
  #masks;
  #state;
  #memory;
  #acted;
  #thinking = false;

  constructor(ort, session) {
    if (typeof ort?.Tensor !== "function") throw unusable("hand in all of the runtime: import * as ort from its package");
    if (!Array.isArray(session?.inputMetadata))
      throw unusable("the session does not tell its inputs; onnxruntime-web does from 1.22 on: npm install onnxruntime-web@latest");
    const inputs = session.inputMetadata.map(({ name, type, shape }) =>
      ({ name, type, dtype: TYPES[type]?.[0], shape: shape.slice(1) }));
    this.#ort = ort;
    this.#session = session;
    this.#acted = session.outputNames.filter((name) => /^action(\.|$)/.test(name));
    this.#seen = inputs.filter(({ name }) => /^(observation|common)(\.|$)/.test(name));
    this.#masks = inputs.filter(({ name }) => /^action_mask(\.|$)/.test(name));
    this.#state = inputs.find(({ name }) => name === "state");
    const known = this.#seen.length + this.#masks.length + Boolean(this.#state);
    if (!this.#acted.length || known < inputs.length || !inputs.every(({ dtype }) => dtype))
      throw unusable(`the file takes ${inputs.map(({ name }) => name)} and gives ${session.outputNames}, as no policy does; ` +
        "write it by rookery export --format onnx");
    this.endEpisode();
  }

  /** The policy in a file: `model` is its address or path, or its bytes. */
  static async load(ort, model) {
    const session = await ort?.InferenceSession?.create(model).catch((fault) => {
      const named = typeof model === "string" ? model : "what was given";
      throw unusable(`${named} cannot be read (${String(fault.message).split("\n")[0]}); ` +
        "is it there, whole, and written by rookery export --format onnx?");
    });
    return new Policy(ort, session);
  }

  /** The likeliest action: the numbers of all its columns. `observation` and `mask` are as those that a simulator shows:
   * the numbers of all columns, one behind another. */
  async act(observation = [], { mask = [] } = {}) {
    const shown = { ...this.#rows(this.#seen, observation, "the observation"), ...this.#rows(this.#masks, mask, "the mask") };
    for (const { name } of this.#masks)
      if (!shown[name].data.some(Boolean)) throw new Fault("mask", `the mask allows nothing of ${name}; ask for no action then`);
    if (!this.#state) return this.#actionOf(await this.#run(shown));
    if (this.#thinking)
      throw new Fault("busy", "the last action is still computed; await it, and give each agent a Policy of its own");
    const memory = this.#memory;
    this.#thinking = true;
    try {
      const said = await this.#run({ ...shown, state: memory });
      if (this.#memory === memory) this.#memory = said.next_state; // or else the episode has ended meanwhile
      return this.#actionOf(said);
    } finally {
      this.#thinking = false;
    }
  }

  /** What it remembers is forgotten: the next thing that it sees begins another episode. */
  endEpisode() {
    this.#memory = this.#state && this.#row(this.#state, new Float32Array(this.#state.shape[0]));
  }

  #run(shown) {
    const said = (LAST.get(this.#session) ?? Promise.resolve()).then(() => this.#session.run(shown));
    LAST.set(this.#session, said.catch(() => {})); // told to who asked for it
    return said;
  }

  #actionOf(said) {
    return this.#acted.flatMap((name) => {
      const { type, data } = said[name];
      return unpack([{ dtype: TYPES[type][0], shape: [data.length] }], data, 0)[0];
    });
  }

  // Name -> a row of it, of `numbers` of all `columns`.
  #rows(columns, numbers, whose) {
    const bytes = pack(columns, numbers, whose);
    let at = 0;
    return Object.fromEntries(columns.map((column) => {
      const array = TYPES[column.type][1];
      const end = at + array.BYTES_PER_ELEMENT * column.shape.reduce((product, size) => product * size, 1);
      const row = this.#row(column, new array(bytes.buffer.slice(at, end)));
      at = end;
      return [column.name, row];
    }));
  }

  #row({ type, shape }, numbers) {
    return new this.#ort.Tensor(type, numbers, [1, ...shape]);
  }
}
