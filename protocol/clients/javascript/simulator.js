// The client for simulators: connect to an actor of a run, ask it for actions, tell what they brought.
//
//     const sim = await connect("tcp://127.0.0.1:5700", "sim-0");
//     let action = await sim.act(observation);
//     ...
//     action = await sim.act(observation, reward);
//     ...
//     await sim.endEpisode(reward);
//
// It speaks over any transport: `send(frames)`, which keeps nothing for an actor that is away; `receive(seconds)`, the
// next message as a list of Uint8Array, or null; `close()`. Every wait has an end. An actor that is lost is found
// again, and the episode that was going on then counts as cut. Nothing here needs Node.

import { Fault, finite } from "./arrays.js";
import { Session } from "./session.js";

export { Fault };

/** No more actions are given: the run, or this actor's part of it, is over. No error. */
export class RunOver extends Error {}

/** Of a simulator that is told when to begin: the actor was lost and found again; await `begin`. */
export class EpisodeCut extends Error {}

/** Nobody answered for as long as the simulator has patience. */
export class Timeout extends Error {}

const ASK_EVERY = 1;

export class Simulator {
  #transport;
  #session;
  #patience;
  #deadline;
  #request = null;
  #earned = new Map();
  #late = 0;
  #begun = null;
  #acted = null;
  #heardAt = 0;
  #askedAt = 0;

  /** `patience`: seconds that it waits for an actor. `deadline`: seconds in which an action must come, else `act` gives
   * null and `admitted.fallback` says what to do; the action that comes later is what the next call gives, and what
   * was earned meanwhile adds up; without one of its own it has the run's. Other options are the session's. */
  constructor(transport, name, { patience = 60, deadline = null, ...options } = {}) {
    this.#transport = transport;
    this.#session = new Session(name, options);
    this.#patience = patience;
    this.#deadline = deadline;
    this.reconnects = 0;
  }

  /** What `admit` said. */
  get admitted() {
    return this.#session.admitted;
  }

  /** Asks until it is let in. A Fault if it never will be, Timeout if nobody answers. */
  async connect() {
    const end = now() + this.#patience;
    for (let refused = "no actor answered, or it knows other keys"; ;) {
      await this.#transport.send(this.#session.hello());
      for (const until = now() + ASK_EVERY; !this.admitted && now() < until;) {
        const event = await this.#receive(until - now());
        if (event?.type === "bye") throw new RunOver(event.reason);
        if (event?.type !== "fault" || event.code === "unknown") continue; // that answers what was said before hello
        if (event.fatal || !["full", "identity"].includes(event.code)) throw new Fault(event.code, event.reason);
        refused = event.reason;
      }
      if (this.admitted) return this;
      if (now() >= end) throw new Timeout(`${refused}; start the run, or correct the address`);
    }
  }

  /** The action of one agent (of the world's only one, if none is named) for what it sees; `reward` is what its last
   * action earned, `clock` the simulator's own. null where the deadline passed. */
  async act(observation, reward = 0, { mask = [], agent = this.#session.only, clock = 0 } = {}) {
    const masks = { [agent]: mask };
    const actions = await this.actAll({ [agent]: observation }, { [agent]: reward }, { masks, clock });
    return actions && actions[agent];
  }

  /** The actions of all agents that are named, in one message; `elements`: of actions that are not atomic, these. */
  async actAll(observations, rewards = {}, { masks = {}, elements = [], clock = 0 } = {}) {
    for (const [agent, reward] of Object.entries(rewards))
      this.#earned.set(agent, (this.#earned.get(agent) ?? 0) + finite(reward, agent));
    if (this.#request) this.#late += 1;
    else await this.#ask({ observations, masks, elements, clock });
    return this.#answer(this.#deadline ?? (this.admitted.deadline || null));
  }

  /** The last action ended the episode and earned `reward`; cut by hand or a limit of time it is `truncated`, and
   * `observation` is what was seen last. Each number and truth in `info` becomes a curve, `info/NAME`. */
  async endEpisode(reward = 0, { truncated = false, observation = [], agent = this.#session.only, info = {} } = {}) {
    await this.endAll({ [agent]: reward }, { truncated, observations: { [agent]: observation }, infos: { [agent]: info } });
  }

  /** The episode ended for these agents; `over`: for everybody; `infos`: by agent. */
  async endAll(rewards, { truncated = false, observations = {}, over = true, infos = {} } = {}) {
    if (this.#request) await this.#answer(null);
    if (this.#session.playing) { // else it was cut when the connection was lost
      const total = {};
      for (const [agent, reward] of Object.entries(rewards)) {
        total[agent] = finite(reward, agent) + (this.#earned.get(agent) ?? 0);
        this.#earned.delete(agent);
      }
      await this.#transport.send(this.#session.end(total, { truncated, last: observations, over, infos }));
    }
    if (over || !this.#session.playing) this.#earned.clear();
  }

  /** For one that does not drive: waits until it is told to begin an episode; the seed. */
  async begin() {
    for (const end = now() + this.#patience; !this.#begun;) await this.#attend(end, false);
    const { seed } = this.#begun;
    this.#begun = null;
    return seed;
  }

  /** Keeps the lease while nothing is asked; `waiting` if no actions are given for now, else `going`. */
  async ping() {
    await this.#transport.send(this.#session.ping());
    for (let event; (event = await this.#receive(0));) await this.#heed(event);
    return this.#session.pace;
  }

  /** Says farewell; what is going on counts as cut. */
  async close(reason = "") {
    if (this.admitted) await this.#transport.send(this.#session.bye(reason));
    await this.#transport.close();
  }

  async #ask(request) {
    const rewards = {};
    for (const agent of Object.keys(request.observations)) {
      if (this.#earned.get(agent)) rewards[agent] = this.#earned.get(agent);
      this.#earned.delete(agent);
    }
    const { observations, ...shown } = request;
    const frames = this.#session.observe(observations, { ...shown, rewards, late: this.#late });
    this.#late = 0;
    this.#request = request;
    this.#askedAt = this.#heardAt = now();
    await this.#transport.send(frames);
  }

  async #answer(deadline) {
    const end = now() + (deadline ?? this.#patience);
    while (!this.#acted) {
      if (deadline !== null && now() >= end) return null;
      await this.#attend(end, deadline !== null);
    }
    const { actions } = this.#acted;
    this.#acted = this.#request = null;
    return actions;
  }

  /** The next thing that the actor says; asks it whether it lives if it says nothing. `quietly`: nothing until `end` is
   * no error, unless it has been silent for longer than the patience. */
  async #attend(end, quietly) {
    if (now() >= (quietly ? this.#heardAt + this.#patience : end))
      throw new Timeout("the actor gave no answer in time; see its log");
    const event = await this.#receive(Math.max(0, Math.min(ASK_EVERY, end - now())));
    if (event) await this.#heed(event);
    else if (now() - Math.max(this.#heardAt, this.#askedAt) > 0.9 * ASK_EVERY) {
      this.#askedAt = now();
      await this.#transport.send(this.#session.ping());
    }
  }

  async #heed(event) {
    if (event.type === "bye") throw new RunOver(event.reason);
    if (event.type === "reset") this.#begun = event;
    if (event.type === "act") this.#acted = event;
    if (event.type !== "fault") return;
    if (event.code === "unknown") return this.#rejoin();
    this.#request = null;
    throw new Fault(event.code, event.reason);
  }

  /** The actor does not know this simulator (any more): in again, as at the start of another episode. */
  async #rejoin() {
    const request = this.#request;
    this.#request = this.#acted = null;
    this.reconnects += 1;
    this.#earned.clear();
    await this.connect();
    if (!this.#session.drives) throw new EpisodeCut("the actor was lost and found again; await begin");
    if (request) await this.#ask(request);
  }

  async #receive(seconds) {
    const frames = await this.#transport.receive(seconds);
    if (!frames) return null;
    this.#heardAt = now();
    return this.#session.take(frames);
  }
}

/** What has arrived and was not taken yet, for transports. */
export class Inbox {
  #arrived = [];
  #waiting = null;

  add(frames) {
    this.#arrived.push(frames);
    this.#waiting?.();
  }

  /** The next message; null if none comes within so many seconds. */
  async take(seconds) {
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
}

/** A simulator that is let in over a transport, which is closed where it is not. */
export async function letIn(transport, name, options) {
  const sim = new Simulator(transport, name, options);
  try {
    return await sim.connect();
  } catch (fault) {
    await sim.close();
    throw fault;
  }
}

function now() {
  return performance.now() / 1000;
}
