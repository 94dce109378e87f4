// A policy that `rookery export --format onnx` wrote, inside a game: without a run, an actor or Python. What computes it
// is a runtime of ONNX of your choice, `onnxruntime-web` (a browser, Node) or `onnxruntime-node`, which is handed in:
//
//     const policy = new Policy(ort, await ort.InferenceSession.create("cartpole.onnx"));
//     const action = await policy.act(observation);
//     ...
//     policy.endEpisode();

import { pack } from "./arrays.js";

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

/** One agent's; several may share a session, as each remembers for itself. */
export class Policy {
  #ort;
  #session;
  #seen;
  #state;
  #memory;

  constructor(ort, session) {
    const inputs = session.inputMetadata.map(({ name, type, shape }) =>
      ({ name, type, dtype: TYPES[type][0], shape: shape.slice(1) }));
    this.#ort = ort;
    this.#session = session;
    this.#seen = inputs.filter(({ name }) => name !== "state");
    this.#state = inputs.find(({ name }) => name === "state");
    this.endEpisode();
  }

  /** The likeliest action: the numbers of all its columns. `observation` and `mask` are as those that a simulator shows:
   * the numbers of all columns, one behind another. */
  async act(observation, { mask = [] } = {}) {
    const bytes = pack(this.#seen, [...observation, ...mask], "what the policy sees");
    const shown = {};
    let at = 0;
    for (const input of this.#seen) {
      const array = TYPES[input.type][1];
      const end = at + array.BYTES_PER_ELEMENT * input.shape.reduce((product, size) => product * size, 1);
      shown[input.name] = this.#row(input, new array(bytes.buffer.slice(at, end)));
      at = end;
    }
    if (this.#state) shown.state = this.#memory;
    const said = await this.#session.run(shown);
    this.#memory = said.next_state;
    const columns = this.#session.outputNames.filter((name) => name === "action" || name.startsWith("action."));
    return columns.flatMap((name) => Array.from(said[name].data, Number));
  }

  /** What it remembers is forgotten: the next thing that it sees begins another episode. */
  endEpisode() {
    this.#memory = this.#state && this.#row(this.#state, new Float32Array(this.#state.shape[0]));
  }

  #row({ type, shape }, numbers) {
    return new this.#ort.Tensor(type, numbers, [1, ...shape]);
  }
}
