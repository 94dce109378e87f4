// The client for simulators in a page, over a WebSocket: `rookery bridge` passes on what it says.
//
// In flow and out flow: messages as lists of Uint8Array; in a message of the WebSocket each is its length, 4 bytes,
// little-endian, and itself. Nothing is queued for a bridge that is away; it is asked anew with the next message.

import { joined } from "./arrays.js";
import { Inbox, letIn } from "./simulator.js";

export { EpisodeCut, Fault, RunOver, Simulator, Timeout } from "./simulator.js";

const OPEN_MS = 5000;

/** To the address that the bridge printed, ws://HOST:PORT/?token=…. */
export class WebSocketTransport {
  #address;
  #socket = null;
  #inbox = new Inbox();

  constructor(address) {
    this.#address = address;
  }

  async send(frames) {
    if (this.#socket?.readyState !== WebSocket.OPEN) await this.#open();
    if (this.#socket?.readyState !== WebSocket.OPEN) return; // the next ping, or hello, tries again
    this.#socket.send(joined(frames.flatMap((frame) => [length(frame), frame])));
  }

  receive(seconds) {
    return this.#inbox.take(seconds);
  }

  async close() {
    this.#socket?.close();
  }

  async #open() {
    this.#socket?.close();
    const socket = new WebSocket(this.#address);
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => this.#inbox.add(framesIn(new Uint8Array(event.data)));
    this.#socket = socket;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, OPEN_MS);
      socket.onopen = socket.onclose = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** A simulator that is let in. */
export function connect(address, name, options = {}) {
  return letIn(new WebSocketTransport(address), name, options);
}

function length(frame) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, frame.length, true);
  return bytes;
}

function framesIn(message) {
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength), frames = [];
  for (let at = 0, size; at < message.length; at += 4 + size) {
    size = view.getUint32(at, true);
    frames.push(message.subarray(at + 4, at + 4 + size));
  }
  return frames;
}
