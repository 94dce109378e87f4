// Types of simulator.js, for TypeScript and editors.

/** Numbers of all columns of a place, one behind another. */
export type Numbers = ArrayLike<number>;
/** Of a mask: 1 or true where an action is allowed. */
export type Mask = ArrayLike<number | boolean>;
export type ByAgent<T> = Record<string, T>;
/** What is told of an episode, by name: at most 30 of at most 48 characters. */
export type Info = Record<string, number | boolean>;

export interface Column {
  name: string;
  /** As NumPy says it: `<f4`, `|u1`. */
  dtype: string;
  shape: number[];
}

/** Which arrays an agent, or each of `many` of one kind, sees and does. */
export interface Place {
  agent: string;
  many: number;
  observation: Column[];
  mask: Column[];
  action: Column[];
}

export interface Admitted {
  places: Place[];
  /** Seconds in which an action comes; 0: as long as it takes. */
  deadline: number;
  fallback: string;
  [further: string]: unknown;
}

export interface Options {
  /** Seconds that it waits for an actor; 60. */
  patience?: number;
  /** Seconds in which an action must come, else `act` gives null; null: the run's. */
  deadline?: number | null;
  /** Whether it runs its own loop, or is told when to begin; true. */
  drives?: boolean;
  /** Seconds of silence after which the actor gives its copy away; 30. */
  lease?: number;
  /** Hash of the world that it was written for, to be compared. */
  world?: string;
  software?: string;
  token?: string;
}

/** `send` keeps nothing for an actor that is away; `receive` gives the next message, or null. */
export interface Transport {
  send(frames: Uint8Array[]): Promise<void>;
  receive(seconds: number): Promise<Uint8Array[] | null>;
  close(): Promise<void>;
}

export class Fault extends Error {
  constructor(code: string, reason: string);
  /** One of those in protocol/README.md, What is refused of simulators. */
  code: string;
}
export class RunOver extends Error {}
export class EpisodeCut extends Error {}
export class Timeout extends Error {}

/** What has arrived and was not taken yet, for transports. */
export class Inbox {
  add(frames: Uint8Array[]): void;
  take(seconds: number): Promise<Uint8Array[] | null>;
}

/** A simulator that is let in over a transport, which is closed where it is not. */
export function letIn(transport: Transport, name: string, options?: Options): Promise<Simulator>;

export class Simulator {
  constructor(transport: Transport, name: string, options?: Options);
  /** How often the actor was lost and found again. */
  reconnects: number;
  get admitted(): Admitted | null;
  connect(): Promise<this>;
  /** null where the deadline passed. */
  act(
    observation: Numbers,
    reward?: number,
    more?: { mask?: Mask; agent?: string; clock?: number },
  ): Promise<number[] | null>;
  actAll(
    observations: ByAgent<Numbers>,
    rewards?: ByAgent<number>,
    more?: { masks?: ByAgent<Mask>; elements?: string[]; clock?: number },
  ): Promise<ByAgent<number[]> | null>;
  endEpisode(
    reward?: number,
    more?: { truncated?: boolean; observation?: Numbers; agent?: string; info?: Info },
  ): Promise<void>;
  endAll(
    rewards: ByAgent<number>,
    more?: { truncated?: boolean; observations?: ByAgent<Numbers>; over?: boolean; infos?: ByAgent<Info> },
  ): Promise<void>;
  /** The seed of the episode to begin. */
  begin(): Promise<number>;
  ping(): Promise<"going" | "waiting">;
  close(reason?: string): Promise<void>;
}
