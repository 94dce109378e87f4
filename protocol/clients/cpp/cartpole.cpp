// A cart with a pole, as a simulator of its own: cartpole tcp://HOST:PORT NAME
//
// It drives its own loop and asks the actor at that address for actions. The physics are those of Barto, Sutton and
// Anderson (1983), as Gymnasium's CartPole-v1 has them.
//
//     g++ -std=c++17 -O2 -o cartpole cartpole.cpp -lzmq
#include <array>
#include <cmath>
#include <functional>
#include <iostream>
#include <random>

#include "rookery.hpp"

namespace {

constexpr double kGravity = 9.8, kCart = 1.0, kPole = 0.1, kHalfLength = 0.5, kForce = 10.0, kSeconds = 0.02;
constexpr double kFarthest = 2.4, kSteepest = 12 * 3.14159265358979323846 / 180;
constexpr int kMostSteps = 500;

class CartPoleSimulator {
 public:
  explicit CartPoleSimulator(const std::string& seed) : random_(std::hash<std::string>{}(seed)) {}

  // Near the middle, nearly upright.
  void reset() {
    for (double& value : state) value = near_(random_);
    steps_ = 0;
  }

  void step(bool push_right) {
    const double speed = state[1], angle = state[2], spin = state[3];
    const double total = kCart + kPole, moment = kPole * kHalfLength;
    const double shared = ((push_right ? kForce : -kForce) + moment * spin * spin * std::sin(angle)) / total;
    const double turning = (kGravity * std::sin(angle) - std::cos(angle) * shared) /
                           (kHalfLength * (4.0 / 3 - kPole * std::pow(std::cos(angle), 2) / total));
    const double pushing = shared - moment * turning * std::cos(angle) / total;
    const std::array<double, 4> change{speed, pushing, spin, turning};
    for (std::size_t i = 0; i < 4; ++i) state[i] += kSeconds * change[i];
    ++steps_;
  }

  bool fell() const { return std::fabs(state[0]) > kFarthest || std::fabs(state[2]) > kSteepest; }
  bool late() const { return !fell() && steps_ >= kMostSteps; }

  rookery::Numbers state{0, 0, 0, 0};  // position, speed, angle of the pole and its speed

 private:
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> near_{-0.05, 0.05};
  int steps_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::cerr << "usage: cartpole tcp://HOST:PORT NAME\n";
    return 2;
  }
  CartPoleSimulator cart(arguments[2]);
  long steps = 0;
  bool push_right = false;
  try {
    rookery::Simulator sim(arguments[1], arguments[2]);
    for (;;) {
      cart.reset();
      for (double reward = 0; !cart.fell() && !cart.late(); reward = 1, ++steps) {
        if (const auto action = sim.act(cart.state, reward)) push_right = action->at(0) == 1;
        cart.step(push_right);  // as before, while the action is late
      }
      sim.end_episode(1, cart.late(), cart.state, "", {{"fell", cart.fell()}});
    }
  } catch (const rookery::RunOver&) {
    std::cout << arguments[2] << ": " << steps << " steps\n";
  } catch (const rookery::Error& fault) {
    std::cerr << "cartpole: " << fault.what() << "\n";
    return 1;
  }
}
