// The client for simulators in C++17, over libzmq: connect to an actor of a run, ask it for actions, tell what they
// brought.
//
//     rookery::Simulator sim("tcp://127.0.0.1:5700", "sim-0");
//     auto action = sim.act(observation);
//     ...
//     action = sim.act(observation, reward);
//     ...
//     sim.end_episode(reward);
//
// Every wait has an end. An actor that is lost is found again, and the episode that was going on then counts as cut:
// what the simulator shows next begins another one.
#pragma once

#include <zmq.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rookery_session.hpp"

namespace rookery {

// No more actions are given: the run, or this actor's part of it, is over. No error.
struct RunOver : std::runtime_error { using std::runtime_error::runtime_error; };
// Of a simulator that is told when to begin: the actor was lost and found again; wait for `begin`.
struct EpisodeCut : std::runtime_error { using std::runtime_error::runtime_error; };
struct Timeout : Error { using Error::Error; };

struct Options {
  bool drives = true;     // whether its episodes begin by themselves, not when `begin` says
  double lease = 30;      // seconds that it may be silent
  double patience = 60;   // seconds that it waits for an actor
  double deadline = -1;   // seconds in which an action must come, else `act` returns nothing; below 0: the run's
  std::string world;      // hash of the world that it was written for; empty: any
  std::string software = "C++";
};

struct Keys { std::string server, own, secret; };  // actor.public, simulator.public, simulator.secret; empty: none

// Those that a connect string has behind ?keys=, else those in the folder that ROOKERY_KEYS names, as it does for who is
// started by a run; else none.
inline Keys keys_of(const std::optional<std::string>& given) {
  const std::string carried = given.value_or("");
  const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::vector<std::uint8_t> raw;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < carried.size(); ++i) {
    bits = bits << 6 | static_cast<std::uint32_t>(letters.find(carried[i]) & 63);
    if (i % 4 != 0) raw.push_back(static_cast<std::uint8_t>(bits >> (6 - i % 4 * 2)));
  }
  if (given && (carried.size() != 128 || carried.find_first_not_of(letters) != std::string::npos))
    throw Error("what follows ?keys= in the address holds no keys; copy all that the run printed");
  const char* folder = std::getenv("ROOKERY_KEYS");
  if (raw.empty() && (folder == nullptr || *folder == '\0')) return {};
  const auto key = [&](std::size_t number, const char* name) -> std::string {
    std::array<char, 41> text{};
    if (!raw.empty()) return zmq_z85_encode(text.data(), raw.data() + 32 * number, 32);
    const std::string path = std::string(folder) + "/" + name;
    std::ifstream(path).get(text.data(), text.size());
    if (text[39] == 0) throw Error(path + " holds no key; correct ROOKERY_KEYS, which names that folder, or unset it");
    return text.data();
  };
  return {key(0, "actor.public"), key(1, "simulator.public"), key(2, "simulator.secret")};
}

// Messages to one address, or connect string; nothing is queued for an actor that is away.
class Line {
 public:
  explicit Line(const std::string& endpoint) : context_(zmq_ctx_new(), zmq_ctx_term) {
    const std::size_t end = endpoint.find("?keys=");
    const std::string address = endpoint.substr(0, end);
    const Keys keys = keys_of(end == std::string::npos ? std::nullopt : std::optional(endpoint.substr(end + 6)));
    socket_ = {zmq_socket(context_.get(), ZMQ_DEALER), zmq_close};
    set(ZMQ_IMMEDIATE, 1);
    set(ZMQ_LINGER, 500);
    if (!keys.server.empty()) {
      set(ZMQ_CURVE_SERVERKEY, keys.server);
      set(ZMQ_CURVE_PUBLICKEY, keys.own);
      set(ZMQ_CURVE_SECRETKEY, keys.secret);
    }
    if (zmq_connect(socket_.get(), address.c_str()) != 0) throw Error("'" + address + "' is no address; write tcp://HOST:PORT");
  }

  bool wait(short events, double seconds) {
    zmq_pollitem_t item{socket_.get(), 0, events, 0};
    return zmq_poll(&item, 1, static_cast<long>(std::ceil(std::max(0.0, seconds) * 1000))) > 0;
  }

  // What cannot be sent is found out when the answer does not come.
  void send(const Frames& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      if (zmq_send(socket_.get(), frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more) < 0) return;
    }
  }

  // The next message; empty if none comes in time.
  Frames receive(double seconds) {
    Frames frames;
    if (!wait(ZMQ_POLLIN, seconds)) return frames;
    for (bool more = true; more;) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket_.get(), frames.empty() ? ZMQ_DONTWAIT : 0) < 0) {
        zmq_msg_close(&part);
        return {};
      }
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    return frames;
  }

 private:
  void set(int option, int value) { zmq_setsockopt(socket_.get(), option, &value, sizeof value); }
  void set(int option, const std::string& key) {
    if (zmq_setsockopt(socket_.get(), option, key.c_str(), key.size() + 1) != 0)
      throw Error("a key is none of 40 characters; give the text of the files that `rookery keys new` makes");
  }

  std::unique_ptr<void, int (*)(void*)> context_, socket_{nullptr, zmq_close};
};

class Simulator {
 public:
  // Asks to be let in: Fault if it never will be, Timeout if nobody answers.
  Simulator(const std::string& endpoint, std::string name, Options options = {})
      : address_(endpoint.substr(0, endpoint.find("?keys="))), options_(options), line_(endpoint),
        session_(std::move(name), options.drives, options.lease, options.world, options.software) {
    connect();
  }
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;
  ~Simulator() { close(); }

  const Admitted& admitted() const { return *session_.admitted(); }
  int reconnects() const { return reconnects_; }

  // The action of one agent (of the world's only one, if none is named) for what it sees; `reward` is what its last
  // action earned, `clock` the simulator's own. Nothing where the deadline passed: do what admitted().fallback says;
  // what comes later is what the next call returns, and what was earned meanwhile adds up.
  std::optional<Numbers> act(const Numbers& observation, double reward = 0, const Numbers& mask = {},
                             const std::string& agent = "", double clock = 0) {
    const std::string name = agent.empty() ? session_.only() : agent;
    auto done = act_all({{name, observation, mask}}, {{name, reward}}, {}, clock);
    if (!done) return std::nullopt;
    return (*done)[name];
  }

  // The actions of all agents that are named, in one message; `elements`: of actions that are not atomic, only these.
  std::optional<Actions> act_all(const std::vector<Seen>& seen, const std::map<std::string, double>& rewards = {},
                                 const Names& elements = {}, double clock = 0) {
    for (const auto& [agent, reward] : rewards) earned_[agent] += reward;
    if (request_) ++late_;
    else ask({seen, elements, clock});
    return answer(deadline());
  }

  // The last action ended the episode; cut by hand or a limit of time it is `truncated`, and `last` was seen last.
  void end_episode(double reward = 0, bool truncated = false, const Numbers& last = {}, const std::string& agent = "",
                   const Info& info = {}) {
    end_all({{agent.empty() ? session_.only() : agent, reward, last, info}}, truncated);
  }

  // The episode ended for these agents; `over`: for everybody.
  void end_all(std::vector<Ending> endings, bool truncated = false, bool over = true) {
    if (request_) answer(-1);
    if (session_.playing()) {  // else it was cut when the connection was lost
      for (Ending& one : endings)
        if (auto found = earned_.extract(one.agent)) one.reward += found.mapped();
      line_.send(session_.end(endings, truncated, over));
    }
    if (over || !session_.playing()) earned_.clear();
  }

  // Of one that does not drive: waits until it is told to begin an episode; the seed.
  std::int64_t begin() {
    const auto end = now() + options_.patience;
    while (!begun_) attend(end, false);
    const auto seed = begun_->seed;
    begun_.reset();
    return seed;
  }

  // Keeps the lease while nothing is asked; `waiting` if no actions are given for now, else `going`.
  std::string ping() {
    line_.send(session_.ping());
    for (auto event = receive(0); event; event = receive(0)) heed(*event);
    return pace_;
  }

  // Says farewell; what is going on counts as cut.
  void close(const std::string& reason = "") {
    if (session_.admitted() && !closed_) line_.send(session_.bye(reason));
    closed_ = true;
  }

 private:
  struct Request { std::vector<Seen> seen; Names elements; double clock; };
  static constexpr double kAskEvery = 1.0;  // seconds of silence after which the actor is asked whether it lives

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // Its own, or the run's; below 0: none.
  double deadline() const {
    const double run = admitted().deadline;
    return options_.deadline < 0 && run > 0 ? run : options_.deadline;
  }

  void connect() {
    const auto end = now() + options_.patience;
    std::string refused = "no actor answered at " + address_ + ", or it knows other keys";
    for (;;) {
      line_.wait(ZMQ_POLLOUT, kAskEvery);
      line_.send(session_.hello());
      const auto answer_by = now() + kAskEvery;
      while (!session_.admitted() && now() < answer_by) {
        const auto event = receive(answer_by - now());
        if (!event) continue;
        if (const auto* over = std::get_if<Over>(&*event)) throw RunOver(over->reason);
        const auto* wrong = std::get_if<Wrong>(&*event);
        if (!wrong || wrong->code == "unknown") continue;  // that answers what was said before hello
        if (wrong->fatal || (wrong->code != "full" && wrong->code != "identity")) throw Fault(wrong->code, wrong->reason);
        refused = wrong->reason;
      }
      if (session_.admitted()) return;
      if (now() >= end) throw Timeout(refused + "; start the run, or correct the address");
    }
  }

  void ask(Request request) {
    std::map<std::string, double> rewards;
    for (const Seen& one : request.seen)
      if (auto found = earned_.extract(one.agent); found && found.mapped() != 0) rewards.insert(std::move(found));
    const Frames frames = session_.observe(request.seen, rewards, request.elements, late_, request.clock);
    late_ = 0;
    request_ = std::move(request);
    asked_at_ = heard_at_ = now();
    line_.send(frames);
  }

  std::optional<Actions> answer(double deadline) {
    const auto end = now() + (deadline < 0 ? options_.patience : deadline);
    while (!acted_) {
      if (deadline >= 0 && now() >= end) return std::nullopt;
      attend(end, deadline >= 0);
    }
    auto actions = std::move(acted_->actions);
    acted_.reset();
    request_.reset();
    return actions;
  }

  // The next thing that the actor says; asks it whether it lives if it says nothing. `quietly`: nothing until `end` is
  // no error, unless it has been silent for longer than the patience.
  void attend(double end, bool quietly) {
    if (now() >= (quietly ? heard_at_ + options_.patience : end))
      throw Timeout("the actor at " + address_ + " gave no answer in time; see its log");
    const auto event = receive(std::min(kAskEvery, end - now()));
    if (event) heed(*event);
    else if (now() - std::max(heard_at_, asked_at_) > 0.9 * kAskEvery) {
      asked_at_ = now();
      line_.send(session_.ping());
    }
  }

  void heed(const Event& event) {
    if (const auto* over = std::get_if<Over>(&event)) throw RunOver(over->reason);
    if (const auto* begun = std::get_if<Begun>(&event)) begun_ = *begun;
    if (const auto* acted = std::get_if<Acted>(&event)) acted_ = *acted;
    if (const auto* alive = std::get_if<Alive>(&event)) pace_ = alive->pace;
    if (const auto* wrong = std::get_if<Wrong>(&event)) {
      if (wrong->code == "unknown") return rejoin();
      request_.reset();
      throw Fault(wrong->code, wrong->reason);
    }
  }

  // The actor does not know this simulator (any more): in again, as at the start of another episode.
  void rejoin() {
    ++reconnects_;
    earned_.clear();
    acted_.reset();
    auto request = std::exchange(request_, std::nullopt);
    connect();
    if (!session_.drives()) throw EpisodeCut("the actor was lost and found again; wait for begin");
    if (request) ask(std::move(*request));
  }

  std::optional<Event> receive(double seconds) {
    const Frames frames = line_.receive(seconds);
    if (frames.empty()) return std::nullopt;
    heard_at_ = now();
    return session_.take(frames);
  }

  std::string address_;
  Options options_;
  Line line_;
  Session session_;
  std::optional<Request> request_;         // what was asked and not answered
  std::map<std::string, double> earned_;   // rewards that no `observe` has told yet
  std::optional<Acted> acted_;             // what answered while something else was waited for
  std::optional<Begun> begun_;
  std::string pace_ = "going";
  std::int64_t late_ = 0;
  double heard_at_ = 0, asked_at_ = 0;
  int reconnects_ = 0;
  bool closed_ = false;
};

}  // namespace rookery
