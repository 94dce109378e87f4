// A simulator's side of the conversation, without a socket: what to say, and what the answers mean.
//
// In flows: what agents see, ends of episodes; messages of the actor. Out flows: messages as frames (lists of
// Uint8Array); what came, as events `{type, ...}` with the names of protocol/README.md. Nothing here needs Node.

import { Fault, finite, joined, pack, unpack } from "./arrays.js";
import { Real, decode, encode } from "./msgpack.js";

const SCHEMA = 2;

export class Session {
  #asked = new Map();
  #about;

  /** Of the simulator `name`; `world`: hash of the one that it was written for, if that is to be compared. */
  constructor(name, { drives = true, lease = 30, world = "", software = "JavaScript", token = randomToken() } = {}) {
    this.drives = drives;
    this.#about = { name, token, drives, world, lease: new Real(lease), software };
    this.admitted = null;
    this.episode = this.number = 0;
    this.playing = false;
    this.pace = "going";
  }

  /** To be said first, and whenever the actor does not know this simulator. */
  hello() {
    this.admitted = null;
    return [header("hello", { ...this.#about, oldest_schema: SCHEMA, newest_schema: SCHEMA })];
  }

  /** Agents ask for actions. `seen`: by agent, the numbers of all columns of its observation; `masks` likewise;
   * `rewards`: what each earned since its last action, none for 0; `clock`: seconds on the simulator's own. */
  observe(seen, { rewards = {}, masks = {}, elements = [], late = 0, clock = 0 } = {}) {
    const agents = Object.keys(seen);
    const pieces = agents.flatMap((agent) => {
      const place = this.#placeOf(agent);
      return [
        pack(place.observation, seen[agent], `${agent}: observation`),
        pack(place.mask, masks[agent] ?? [], `${agent}: action_mask`),
      ];
    });
    if (!this.playing) this.episode += 1;
    this.playing = true;
    this.number += 1;
    this.#asked.set(this.number, { agents, elements });
    const earned = Object.keys(rewards).length ? agents.map((agent) => new Real(rewards[agent] ?? 0)) : [];
    const { number, episode } = this;
    const fields = { number, episode, agents, rewards: earned, elements, late, clock: new Real(clock) };
    return [header("observe", fields), joined(pieces)];
  }

  /** The episode ended for the agents of `rewards`; `last`: what they saw last, where it was cut (`truncated`);
   * `over`: for everybody; `infos`: by agent, numbers and truths by name, of which there are curves. */
  end(rewards, { truncated = false, last = {}, over = true, infos = {} } = {}) {
    const agents = Object.keys(rewards);
    const pieces = (truncated ? agents : []).map((agent) =>
      pack(this.#placeOf(agent).observation, last[agent] ?? [], `${agent}: last observation`));
    const earned = agents.map((agent) => new Real(rewards[agent]));
    const fields = { episode: this.episode, agents, rewards: earned, truncated, over };
    if (Object.values(infos).some((info) => Object.keys(info).length))
      fields.infos = agents.map((agent) => told(infos[agent] ?? {}, agent));
    this.playing = this.playing && !over;
    return pieces.length ? [header("end", fields), joined(pieces)] : [header("end", fields)];
  }

  ping(clock = 0) {
    return [header("ping", { clock: new Real(clock) })];
  }

  bye(reason = "") {
    return [header("bye", { reason })];
  }

  /** What the actor said; null for an answer to what is not asked any more. */
  take(frames) {
    const message = decode(frames[0]);
    switch (message.type) {
      case "admit": return this.#enter(message);
      case "act": return this.#acted(message, frames);
      case "pong":
        this.pace = message.pace;
        return message;
      case "reset":
        this.episode = message.episode;
        this.playing = true;
        return message;
      case "fault": return { answers: 0, fatal: false, ...message };
      case "bye": return { reason: "", ...message };
      default: throw new Error(`a message of type ${message.type} came, which no actor says; install the same release`);
    }
  }

  /** The world's only agent. */
  get only() {
    const places = this.admitted?.places ?? [];
    if (places.length !== 1 || places[0].many) throw new Error("the world has several agents; name one");
    return places[0].agent;
  }

  /** Of the agent `name`, which may be one of many: `template.0`. */
  #placeOf(name) {
    if (!this.admitted) throw new Error("the simulator is not connected; await connect first");
    for (const place of this.admitted.places) {
      if (place.many === 0 && place.agent === name) return place;
      const [, number] = name.startsWith(`${place.agent}.`) ? name.split(`${place.agent}.`) : [];
      if (String(Number(number)) === number && Number(number) < place.many) return place;
    }
    throw new Fault("agent", `there is no agent '${name}' in this world; see places in admit`);
  }

  #enter(message) {
    this.admitted = { deadline: 0, fallback: "last", ...message };
    this.episode = this.number = 0;
    this.playing = false;
    this.#asked.clear();
    return this.admitted;
  }

  #acted(message, frames) {
    const asked = this.#asked.get(message.answers);
    if (!asked) return null;
    this.#asked.delete(message.answers);
    let at = 0;
    const actions = {};
    for (const agent of asked.agents) {
      const columns = this.#placeOf(agent).action.filter(({ name }) =>
        asked.elements.length === 0 || asked.elements.some((one) => `${name}.`.startsWith(`action.${one}.`)));
      [actions[agent], at] = unpack(columns, frames[1], at);
    }
    return { ...message, actions };
  }
}

function header(type, fields) {
  return encode({ type, schema_number: SCHEMA, ...fields });
}

function told(info, agent) {
  return Object.fromEntries(Object.entries(info).map(([name, value]) =>
    [name, typeof value === "boolean" ? value : new Real(finite(value, agent, name))]));
}

function randomToken() {
  return Array.from({ length: 16 }, () => Math.floor(Math.random() * 16).toString(16)).join("");
}
