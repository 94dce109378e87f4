// What tests want of the JavaScript client: `node driver.mjs golden ADMIT ACT ACTION` prints the messages of the golden
// session as hexadecimal text; `node driver.mjs wrong tcp://HOST:PORT` breaks the rules, and prints what it is told;
// `node driver.mjs play tcp://HOST:PORT?keys=KEYS` plays short episodes, driven by whom it connects to with these keys;
// `node driver.mjs hall tcp://HOST:PORT` plays two agents, whose spaces are nested, and one whose action is late.
import { pack, unpack } from "../../protocol/clients/javascript/arrays.js";
import { encode } from "../../protocol/clients/javascript/msgpack.js";
import { connect, EpisodeCut, RunOver, ZeroMQTransport } from "../../protocol/clients/javascript/node.js";
import { Session } from "../../protocol/clients/javascript/session.js";
import { Fault } from "../../protocol/clients/javascript/simulator.js";

const hex = (raw) => Buffer.from(raw).toString("hex");
const raw = (text) => Uint8Array.from(Buffer.from(text, "hex"));
const show = (name, frames) => console.log(`${name}:`, ...frames.map(hex));

function golden(admit, act, action, ...others) {
  const session = new Session("robot-1", { lease: 10, software: "robot 2.1", token: "00112233445566ff" });
  show("hello", session.hello());
  session.take([raw(admit)]);
  show("observe", session.observe({ gem: [1, 2] }));
  console.log("action:", session.take([raw(act), raw(action)]).actions.gem[0]);
  show("observe-rewarded", session.observe({ gem: [3, 4] }, { rewards: { gem: 0.5 }, clock: 2.5 }));
  show("end", session.end({ gem: -1 }, { truncated: true, last: { gem: [5, 6] } }));
  show("end-told", session.end({ gem: -1 }, { infos: { gem: { far: 2.5, won: true } } }));
  show("ping", session.ping(1.5));
  show("bye", session.bye("its battery is empty"));
  for (let i = 0; i < others.length; i += 2) {
    const columns = [{ name: "observation", dtype: others[i], shape: [] }];
    const [numbers] = unpack(columns, raw(others[i + 1]), 0);
    console.log(`${others[i]} ${others[i + 1]}:`, numbers[0], hex(pack(columns, numbers, "it")));
  }
}

async function told(what, breaking) {
  try {
    await breaking();
    console.log(`${what}: nothing`);
  } catch (fault) {
    console.log(`${what}: ${fault.message}`);
  }
}

async function wrong(address) {
  const impatient = { patience: 0.5 };
  const sim = await connect(address, "sim", impatient);
  await sim.act([1, 0]);
  await told("wrong spaces", () => sim.act([1, 0, 0], 1));
  await told("unknown agent", () => sim.act([1, 0], 0, { agent: "nobody" }));
  await told("not a number", () => sim.act([NaN, 0]));
  await told("not a reward", () => sim.act([1, 0], NaN));
  await told("duplicate identity", () => connect(address, "sim", impatient));
  await told("another world", () => connect(address, "other", { ...impatient, world: "0011223344556677" }));
  await told("served all the same", () => sim.act([2, 0], 2));

  const line = new ZeroMQTransport(address);
  const session = new Session("raw");
  const answer = async (frames) => { // said again if nobody answers: it may have gone with a connection that was ending
    for (let i = 0; i < 60; i += 1) {
      await line.send(frames);
      const answered = await line.receive(1);
      if (answered) return answered;
    }
    throw new Error("nobody answered");
  };
  const refused = (what, frames) => told(what, async () => {
    const event = session.take(await answer(frames));
    if (event.type === "fault") throw new Fault(event.code, event.reason);
  });
  const late = { type: "hello", schema_number: 1, name: "late", token: "t", oldest_schema: 7, newest_schema: 9 };
  await refused("version skew", [encode(late)]);
  await refused("half a hello", [session.hello()[0].subarray(0, 40)]);
  await refused("garbage", [Uint8Array.of(0xc1, 0x20), Uint8Array.of(1)]);
  await refused("before hello", session.ping());
  await refused("hello", session.hello());
  const frames = session.observe({ walker: [1, 0] });
  await refused("no observation", [frames[0]]);
  await refused("an action", frames);
  await line.send(session.end({ walker: 1 }));
  await refused("ended twice", session.end({ walker: 1 }));
  await line.send([session.ping()[0], new Uint8Array(1 << 20)]);
  await refused("after a frame too large", session.ping());
  await line.close();
  await sim.close();
}

async function play(endpoint) {
  const sim = await connect(endpoint, "sim", { drives: false });
  for (;;) {
    try {
      const seed = await sim.begin();
      for (let step = 0; step < 5; step += 1) await sim.act([step, seed], step);
      await sim.endEpisode(1, { truncated: seed % 2 === 0, observation: [5, seed], info: { far: 2.5, won: true } });
    } catch (fault) {
      if (fault instanceof RunOver) return sim.close();
      if (!(fault instanceof EpisodeCut)) throw fault; // that one is told when to begin again
    }
  }
}

function tell(what, actions) {
  const each = Object.entries(actions).flatMap(([agent, numbers]) => numbers.map((number) => `${agent}=${number}`));
  console.log(`${what}:`, ...each);
}

async function hall(address) {
  const [masks, guard] = [{ guard: Array(5).fill(1) }, [3, 0.5, -0.5, 0.25]];
  const sim = await connect(address, "hall");
  tell("both", await sim.actAll({ guard, thief: [7, 200] }, {}, { masks, clock: 1.5 }));
  tell("one", await sim.actAll({ guard: [1, 0, 0, 1] }, { guard: 2, thief: 1 }, { masks, elements: ["go"] }));
  await sim.endAll({ guard: -1 }, { truncated: true, observations: { guard }, over: false });
  await sim.endAll({ thief: 0.5 });
  await told("no element", () => sim.actAll({ guard }, {}, { masks, elements: ["wings"] }));
  const late = await connect(address, "late", { deadline: 0.05 });
  let missed = 0;
  while (!(await late.act([9, 9], missed ? 1 : 0, { agent: "thief" }))) missed += 1;
  while (!(await late.act([1, 1], 1, { agent: "thief" }))) continue;
  console.log(`missed: ${missed}`);
  await late.close();
  await sim.close();
}

const [, , mode, ...given] = process.argv;
await { golden, wrong, play, hall }[mode](...given);
