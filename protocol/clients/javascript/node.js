// The client for simulators in Node, over the package `zeromq`.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { Dealer } from "zeromq";

import { Inbox, letIn } from "./simulator.js";

export { EpisodeCut, Fault, RunOver, Simulator, Timeout } from "./simulator.js";

const FAREWELL_MS = 500;

const Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

function z85(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 4) {
    for (let value = bytes.readUInt32BE(at), place = 85 ** 4; place >= 1; place /= 85) {
      text += Z85[Math.floor(value / place) % 85];
    }
  }
  return text;
}

/** Those that a connect string has behind `?keys=`, else those in the folder that `ROOKERY_KEYS` names, as it does for
 * who is started by a run; else none. */
function keysOf(carried) {
  const folder = process.env.ROOKERY_KEYS;
  if (carried !== undefined) {
    const raw = Buffer.from(carried, "base64url");
    if (!/^[\w-]{128}$/.test(carried)) throw new Error("what follows ?keys= in the address holds no keys; copy all that the run printed");
    return [0, 32, 64].map((at) => z85(raw.subarray(at, at + 32)));
  }
  const read = (name) => {
    const path = join(folder, name);
    const key = existsSync(path) ? readFileSync(path, "utf8").trim() : "";
    if (key.length !== 40) throw new Error(`${path} holds no key; correct ROOKERY_KEYS, which names that folder, or unset it`);
    return key;
  };
  return folder ? ["actor.public", "simulator.public", "simulator.secret"].map(read) : [];
}

/** Messages to one address, or connect string; nothing is queued for an actor that is away. */
export class ZeroMQTransport {
  #socket;
  #inbox = new Inbox();

  constructor(endpoint) {
    const [address, carried] = endpoint.split("?keys=");
    const [server, own, secret] = keysOf(carried);
    const curve = server && { curveServerKey: server, curvePublicKey: own, curveSecretKey: secret };
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

  receive(seconds) {
    return this.#inbox.take(seconds);
  }

  async close() {
    this.#socket.close();
  }

  async #read() {
    for await (const frames of this.#socket) {
      this.#inbox.add(frames);
    }
  }
}

/** A simulator that is let in. */
export function connect(endpoint, name, options = {}) {
  return letIn(new ZeroMQTransport(endpoint), name, options);
}
