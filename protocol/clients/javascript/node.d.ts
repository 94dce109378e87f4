// Types of node.js, for TypeScript and editors.

import { Options, Simulator, Transport } from "./simulator.js";

export { EpisodeCut, Fault, RunOver, Simulator, Timeout } from "./simulator.js";
export type { Admitted, ByAgent, Column, Mask, Numbers, Options, Place, Transport } from "./simulator.js";

/** Over the package `zeromq`, to an address or a connect string. */
export class ZeroMQTransport implements Transport {
  constructor(endpoint: string);
  send(frames: Uint8Array[]): Promise<void>;
  receive(seconds: number): Promise<Uint8Array[] | null>;
  close(): Promise<void>;
}

/** A simulator that is let in. */
export function connect(endpoint: string, name: string, options?: Options): Promise<Simulator>;
