// The client for simulators in Node, over the package `zeromq`.

import { Dealer } from "zeromq";

import { Simulator } from "./simulator.js";

export { EpisodeCut, Fault, RunOver, Simulator, Timeout } from "./simulator.js";

const FAREWELL_MS = 500;

/** Messages to one address; nothing is queued for an actor that is away. `keys`: the texts of `actor.public` (server),
 * `simulator.public` and `simulator.secret`, where the run uses them. */
export class ZeroMQTransport {
  #socket;
  #arrived = [];
  #waiting = null;

  constructor(address, keys = null) {
    const curve = keys && { curveServerKey: keys.server, curvePublicKey: keys.public, curveSecretKey: keys.secret };
    this.#socket = new Dealer({ immediate: true, linger: FAREWELL_MS, sendTimeout: 1000, ...curve });
    this.#socket.connect(address);
    this.#read();
  }

  /** What cannot be sent is found out when the answer does not come. */
  async send(frames) {
    try {
      await this.#socket.send(frames);
    } catch (fault) {
      if (fault.code !== "EAGAIN") throw fault; // the next ping, or hello, tells whether the actor knows of it
    }
  }

  async receive(seconds) {
    if (this.#arrived.length === 0 && seconds > 0) {
      let timer;
      await new Promise((resolve) => {
        this.#waiting = resolve;
        timer = setTimeout(resolve, seconds * 1000);
      });
      this.#waiting = null;
      clearTimeout(timer);
    }
    return this.#arrived.shift() ?? null;
  }

  async close() {
    this.#socket.close();
  }

  async #read() {
    for await (const frames of this.#socket) {
      this.#arrived.push(frames);
      this.#waiting?.();
    }
  }
}

/** A simulator that is let in; options are those of Simulator, and `keys`. */
export async function connect(address, name, { keys = null, ...options } = {}) {
  const sim = new Simulator(new ZeroMQTransport(address, keys), name, options);
  try {
    return await sim.connect();
  } catch (fault) {
    await sim.close();
    throw fault;
  }
}
