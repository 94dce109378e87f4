// Types of policy.js, for TypeScript and editors.

import type { Mask, Numbers } from "./simulator.js";

/** A runtime of ONNX: all of `onnxruntime-web` or `onnxruntime-node`. */
export interface Runtime {
  Tensor: new (type: any, numbers: any, shape: number[]) => unknown;
  InferenceSession: { create(model: any): Promise<Session> };
}

/** One that `InferenceSession.create` of the same runtime gave. */
export interface Session {
  readonly inputMetadata: readonly any[];
  readonly outputNames: readonly string[];
  run(shown: any): Promise<Record<string, any>>;
}

export class Policy {
  constructor(ort: Runtime, session: Session);
  static load(ort: Runtime, model: string | Uint8Array | ArrayBuffer): Promise<Policy>;
  act(observation: Numbers, more?: { mask?: Mask }): Promise<number[]>;
  endEpisode(): void;
}
