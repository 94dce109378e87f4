// A cart with a pole, for the examples: the physics of Barto, Sutton and Anderson (1983), as Gymnasium's CartPole-v1 has
// them.

const [GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS] = [9.8, 1.0, 0.1, 0.5, 10.0, 0.02];
const [MOST_STEPS, FARTHEST, STEEPEST] = [500, 2.4, (12 * Math.PI) / 180];

export class CartPole {
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
