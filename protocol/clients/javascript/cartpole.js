// A cart with a pole, as a simulator of its own: node cartpole.js tcp://HOST:PORT NAME
//
// It drives its own loop and asks the actor at that address for actions. The physics are those of Barto, Sutton and
// Anderson (1983), as Gymnasium's CartPole-v1 has them. `npm install` in this folder first.

import { RunOver, connect } from "./node.js";

const [GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS] = [9.8, 1.0, 0.1, 0.5, 10.0, 0.02];
const [MOST_STEPS, FARTHEST, STEEPEST] = [500, 2.4, (12 * Math.PI) / 180];

class CartPoleSimulator {
  constructor() {
    this.reset();
  }

  /** Near the middle, nearly upright; `state` is position, speed, angle of the pole and its speed. */
  reset() {
    this.state = Array.from({ length: 4 }, () => Math.random() * 0.1 - 0.05);
    this.steps = 0;
  }

  step(pushRight) {
    const [, speed, angle, spin] = this.state;
    const total = CART + POLE, moment = POLE * HALF_LENGTH;
    const shared = ((pushRight ? FORCE : -FORCE) + moment * spin ** 2 * Math.sin(angle)) / total;
    const turning = (GRAVITY * Math.sin(angle) - Math.cos(angle) * shared) /
      (HALF_LENGTH * (4 / 3 - (POLE * Math.cos(angle) ** 2) / total));
    const pushing = shared - (moment * turning * Math.cos(angle)) / total;
    const change = [speed, pushing, spin, turning];
    this.state = this.state.map((value, i) => value + SECONDS * change[i]);
    this.steps += 1;
  }

  get fell() {
    return Math.abs(this.state[0]) > FARTHEST || Math.abs(this.state[2]) > STEEPEST;
  }

  get late() {
    return !this.fell && this.steps >= MOST_STEPS;
  }
}

async function main(address, name) {
  const cart = new CartPoleSimulator();
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
      await sim.endEpisode(1, { truncated: cart.late, observation: cart.state });
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
