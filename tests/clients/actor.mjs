// An actor in JavaScript, written from protocol/README.md: it plays a light that it has to follow, in pictures of the
// size that the run has, by the graph of its policy in ONNX Runtime. Segments travel inline, weights are asked for.

import { createHash, randomBytes } from "node:crypto";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { crc32 } from "node:zlib";

import { decode, encode, Real } from "../../protocol/clients/javascript/msgpack.js";

const require = createRequire(new URL("../../protocol/clients/javascript/package.json", import.meta.url));
const zmq = require("zeromq"), ort = require("onnxruntime-web");
ort.env.wasm.numThreads = 1;

const [probe, coordinator] = process.argv.slice(2);
const COPIES = 8, SCHEMA = 2;
const OPTIONS = { linger: 0, heartbeatInterval: 1000, heartbeatTimeout: 30_000, connectTimeout: 2000, handshakeInterval: 5000,
  reconnectInterval: 100, reconnectMaxInterval: 1000, tcpMaxRetransmitTimeout: 5000 };
const ARRAYS = { "|u1": Uint8Array, "|b1": Uint8Array, "<i4": Int32Array, "<i8": BigInt64Array, "<u8": BigUint64Array,
  "<f4": Float32Array, "<f8": Float64Array };
const TENSORS = { "|u1": "uint8", "|b1": "bool", "<i4": "int32", "<i8": "int64", "<f4": "float32", "<f8": "float64" };

const product = (shape) => shape.reduce((all, size) => all * size, 1);
const draw = (below) => Math.floor(Math.random() * below);
const raw = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);

/** A socket over which one message goes after another. */
class Line {
  constructor(kind, address, hear) {
    this.socket = new zmq[kind](OPTIONS);
    this.socket.connect(address);
    this.sent = Promise.resolve();
    if (hear) this.#read(hear);
  }

  send(type, fields, frames = []) {
    const message = [encode({ type, schema_number: SCHEMA, ...fields }), ...frames];
    this.sent = this.sent.then(() => this.socket.send(message));
  }

  async #read(hear) {
    for await (const frames of this.socket) {
      const at = this.socket instanceof zmq.Subscriber ? 1 : 0; // behind the topic
      hear(decode(frames[at]), frames.slice(at + 1), String(frames[0]));
    }
  }
}

/** One copy of the world: the light is at `at`; who says so earns 1, who says what comes next ends the episode. */
class Stream {
  constructor(index, layout, choices) {
    Object.assign(this, { index, layout, choices, sequence: -1, ended: 0 });
    this.memory = new Float32Array(product(layout.fields.find(([name]) => name === "state")[2]));
    this.begin();
    this.clear();
  }

  begin() {
    this.steps = 0;
    this.at = draw(this.choices);
    this.memory.fill(0);
  }

  clear() { // begins a segment
    this.valid = this.truncations = 0;
    this.sequence += 1;
    this.episode = this.ended;
    this.columns = {};
    for (const [name, dtype, shape, per] of this.layout.fields)
      this.columns[name] = new ARRAYS[dtype](product(shape) * (per === "row" ? this.layout.length + 1 : 1));
    this.columns.final_row.fill(-1);
    this.columns.state.set(this.memory);
  }

  see(picture) {
    picture.fill(0);
    for (let i = this.at; i < picture.length; i += this.choices) picture[i] = 255 - this.steps;
  }

  /** Acts once and notes the row; the return of the episode, if this ended it. */
  step(action, row) {
    const columns = this.columns, size = columns.observation.length / (this.layout.length + 1);
    this.see(columns.observation.subarray(this.valid * size, (this.valid + 1) * size));
    const reward = Number(action === this.at);
    this.steps += 1;
    const terminated = this.steps > 3 && action === (this.at + 1) % this.choices;
    const truncated = this.steps === 12 && !terminated;
    this.at = (this.at + 1) % this.choices;
    this.earned = (this.steps === 1 ? 0 : this.earned) + reward;
    for (const [name, value] of Object.entries({ ...row, action: BigInt(action), reward, terminated, truncated })) columns[name][this.valid] = value;
    if (truncated) {
      this.see(columns.final_observation.subarray(this.truncations * size, (this.truncations + 1) * size));
      columns.final_row[this.truncations++] = this.valid;
    }
    this.valid += 1;
    if (!terminated && !truncated) return undefined;
    const told = [this.earned, this.steps];
    this.ended += 1;
    this.begin();
    return told;
  }

  /** The segment, full or short: its record and its columns. */
  finish(number) {
    const size = this.columns.observation.length / (this.layout.length + 1);
    this.see(this.columns.observation.subarray(this.valid * size, (this.valid + 1) * size));
    const versions = [...this.columns.version.subarray(0, this.valid)];
    const least = versions.reduce((a, b) => (a < b ? a : b)), most = versions.reduce((a, b) => (a > b ? a : b));
    const record = Buffer.alloc(64);
    [2n, BigInt(number), BigInt(this.index), BigInt(this.sequence), least, most].forEach((word, i) => record.writeBigUInt64LE(word, 8 * i));
    record.writeUInt16LE(this.valid, 56);
    record.writeUInt32LE(2 + 256 * (this.episode % 2 ** 24), 60);
    return [record, ...this.layout.fields.map(([name]) => raw(this.columns[name]))];
  }
}

const token = randomBytes(8).toString("hex");
let welcome, facts, layout, graph, routed, experience, weights, fault = "", command = "go", state = "waiting", asking = "";
let steps = 0, produced = 0, announced = 0, settled = 0, last = 0, refused = 0, request = 0, untold = [], sent = 0;
const held = new Map(), newest = { version: 0 };

function hear(header, frames) {
  if (header.type === "refusal" && !header.retry) fault = header.reason;
  else if (header.type === "welcome") welcome ??= header;
  else if (header.type === "graph") {
    if (createHash("sha256").update(frames[0]).digest("hex") !== header.hash) fault = "the graph was damaged on its way";
    graph = frames[0];
  } else if (header.type === "status") {
    untold = untold.slice(sent);
    sent = 0;
    if (command !== "drain" || header.command === "stop") command = header.command;
    for (const route of header.routes ?? []) if (route.policy === facts.policy) reach(route);
  }
}

function reach(route) {
  if (routed) {
    if (route.incarnation !== routed.incarnation) fault = "the learner is another one";
    return;
  }
  routed = route;
  experience = new Line("Push", route.experience);
  weights = new Line("Subscriber", route.weights, hearWeights);
  weights.socket.subscribe(`b/${facts.policy}/`);
  const acks = new Line("Subscriber", route.acknowledgements, (header) => {
    settled = Math.max(settled, header.acknowledged);
    refused = header.refused ?? 0;
    if (header.reason) fault = header.reason;
    for (const number of held.keys()) if (number <= settled) held.delete(number);
  });
  acks.socket.subscribe(`a/${facts.policy}/${welcome.name}/${welcome.incarnation}/`);
}

function hearWeights(header, frames, topic) {
  const packed = header.incarnation * 2 ** 40 + header.version;
  if (header.type === "beacon" && header.version && packed > newest.version && !asking) {
    asking = `w/${facts.policy}/${token}/${++request}/`;
    weights.socket.subscribe(asking);
  } else if (header.type === "weights" && topic === asking) {
    weights.socket.unsubscribe(asking);
    asking = "";
    if (crc32(frames[0]) !== header.crc || (header.wire ?? "float32") !== "float32") return;
    const flat = Uint8Array.from(frames[0]).buffer, tensors = {};
    for (const { name, dtype, shape, offset } of JSON.parse(header.entries))
      tensors[`weights.${name}`] = new ort.Tensor(TENSORS[dtype], new ARRAYS[dtype](flat, offset, product(shape)), shape);
    Object.assign(newest, { version: packed, tensors, flat: frames[0], entries: header.entries });
  }
}

/** Announces what there is credit for. */
function announce() {
  while (announced < produced && announced < settled + facts.credits) {
    const end = Math.min(produced, settled + facts.credits, announced + facts.max_inline);
    const segments = Array.from({ length: end - announced }, (_, i) => held.get(announced + 1 + i));
    const who = { run: welcome.run, actor: welcome.name, incarnation: welcome.incarnation, proof: welcome.proof };
    const hash = createHash("sha256").update(facts.layout).digest("hex").slice(0, 16);
    const after = last > settled ? last : 0;
    experience.send("segments", { ...who, policy: facts.policy, layout: hash, count: segments.length, inline: true, after },
      segments[0].map((_, i) => Buffer.concat(segments.map((frames) => frames[i]))));
    last = announced = end;
  }
}

function totals() {
  const policy = facts.policy;
  const counters = { agent_steps: steps, env_steps: steps, [`produced.${policy}`]: produced, [`backlog.${policy}`]: produced - announced,
    [`flight.${policy}`]: announced - settled, [`refused_messages.${policy}`]: refused };
  sent = untold.length;
  return { name: welcome.name, token, incarnation: welcome.incarnation, episodes: untold,
    counters: Object.fromEntries(Object.entries(counters).map(([name, total]) => [name, new Real(total)])) };
}

/** Until something holds, or it is to end. */
async function until(holds, again = () => {}, every = 1000) {
  for (let due = 0; !holds() && !fault && command !== "stop"; await sleep(5))
    if (Date.now() >= due) {
      again();
      due = Date.now() + every;
    }
}

async function act(session) {
  const sizes = JSON.parse(facts.network).outputs[0].sizes;
  const streams = Array.from({ length: COPIES }, (_, i) => new Stream(i, layout, sizes[0]));
  const [, , shape] = layout.fields.find(([name]) => name === "observation"), size = product(shape);
  const remembers = streams[0].memory.length;
  let adopted = { ...newest }, probed = false;
  const deliver = (least) => {
    for (const stream of streams.filter(({ valid }) => valid >= least)) {
      held.set(++produced, stream.finish(produced));
      const versions = new Set(stream.columns.version.subarray(0, stream.valid));
      if (!probed && versions.size === 1 && adopted.version % 2 ** 40 > 2 && stream.columns.terminated.some(Boolean)) {
        const frames = held.get(produced).slice(1).map((frame) => frame.toString("hex"));
        writeFileSync(probe, JSON.stringify({ entries: JSON.parse(adopted.entries), flat: adopted.flat.toString("hex"), frames }));
        probed = true;
      }
      stream.clear();
    }
  };
  for (let turn = 0; steps < welcome.quota && command === "go" && !fault; turn++) {
    if (turn % facts.sync_interval === 0) adopted = { ...newest };
    const seen = new Uint8Array(COPIES * size), remembered = new Float32Array(COPIES * remembers);
    streams.forEach((stream, i) => {
      stream.see(seen.subarray(i * size, (i + 1) * size));
      remembered.set(stream.memory, i * remembers);
    });
    const given = { observation: new ort.Tensor("uint8", seen, [COPIES, ...shape]), state: new ort.Tensor("float32", remembered, [COPIES, remembers]) };
    for (const name of session.inputNames) given[name] ??= adopted.tensors[name];
    const said = await session.run(given), choices = sizes[0];
    streams.forEach((stream, i) => {
      const logs = said.log_probabilities.data.subarray(i * choices, (i + 1) * choices);
      let left = Math.random(), action = 0;
      while (action < choices - 1 && (left -= Math.exp(logs[action])) > 0) action++;
      stream.memory.set(said.next_state.data.subarray(i * remembers, (i + 1) * remembers));
      const row = { version: BigInt(adopted.version), log_probability: logs[action], value: said.value.data[i] };
      const told = stream.step(action, row);
      steps += 1;
      if (told) untold.push([facts.policy, steps, 1, new Real(told[0]), told[1]]);
    });
    deliver(layout.length);
    await until(() => (announce(), produced === announced || command !== "go"));
  }
  deliver(1);
  state = "draining";
  await until(() => (announce(), held.size === 0));
}

const link = new Line("Dealer", coordinator, hear);
const who = { role: "actor", token, release: "document", host: "javascript", pid: process.pid };
await until(() => welcome, () => link.send("join", who));
if (welcome) {
  facts = welcome.specs[0];
  layout = JSON.parse(facts.layout);
  const beats = setInterval(() => link.send("heartbeat", { ...totals(), state }), 1000 * welcome.heartbeat);
  link.send("heartbeat", { ...totals(), state });
  const me = { name: welcome.name, token, incarnation: welcome.incarnation };
  await until(() => graph, () => link.send("fetch_graph", { ...me, policy: facts.policy }), 500);
  await until(() => newest.version);
  if (graph && newest.version && !fault) {
    state = "acting";
    await act(await ort.InferenceSession.create(graph)).catch((error) => (fault ||= String(error)));
  }
  clearInterval(beats);
  const error = fault;
  fault = "";
  await until(() => false, () => link.send("leave", { ...totals(), error }));
  fault = error;
}
process.stdout.write(JSON.stringify({ error: fault, produced, settled, steps }) + "\n");
process.exit(fault ? 1 : 0);
