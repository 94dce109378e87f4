// A cart with a pole, as a simulator of its own: node cartpole.js tcp://HOST:PORT NAME
//
// It drives its own loop and asks the actor at that address for actions. `npm install` in this folder first.

import { CartPole } from "./cart.js";
import { RunOver, connect } from "./node.js";

async function main(address, name) {
  const cart = new CartPole();
  let sim = null, steps = 0, pushRight = false;
  try {
    sim = await connect(address, name);
    for (;;) {
      cart.reset();
      for (let reward = 0; !cart.fell && !cart.late; reward = 1) {
        const action = await sim.act(cart.state, reward);
        if (action) pushRight = action[0] === 1;
        cart.step(pushRight); // as before, while the action is late
        steps += 1;
      }
      await sim.endEpisode(1, { truncated: cart.late, observation: cart.state, info: { fell: cart.fell } });
    }
  } catch (fault) {
    if (!(fault instanceof RunOver)) throw fault;
    console.log(`${name}: ${steps} steps`);
  } finally {
    await sim?.close();
  }
}

if (process.argv.length !== 4) {
  console.error("usage: node cartpole.js tcp://HOST:PORT NAME");
  process.exit(2);
}
await main(process.argv[2], process.argv[3]);
