// A simulator's side of the conversation, without a socket: what to say, and what the answers mean.
//
// In flows: what agents see, ends of episodes; messages of the actor. Out flows: messages as frames; what came, as one
// of the events below.
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rookery_arrays.hpp"

namespace rookery {

using Frames = std::vector<std::string>;
using Names = std::vector<std::string>;
using Actions = std::map<std::string, Numbers>;
// What is told of an episode, by name (30 at most, of 48 characters at most): each becomes a curve, `info/NAME`.
using Info = std::map<std::string, std::variant<bool, double>>;

// What one agent tells when it asks for an action: the numbers of all columns of its observation and of its masks.
struct Seen {
  std::string agent;
  Numbers observation;
  Numbers mask = {};
};

// How the episode ended for one agent; `last`: what it saw last, where it was cut.
struct Ending {
  std::string agent;
  double reward = 0;
  Numbers last = {};
  Info info = {};
};

struct Admitted {
  std::string run, name, world, hash;
  std::int64_t incarnation, copy_number;
  double lease;
  double deadline;       // seconds in which it should have an action; 0: none
  std::string fallback;  // what the run wishes it to do while an action is late: last, default or scripted
  std::vector<Place> places;
};

struct Acted { std::int64_t answers; Actions actions; };
struct Begun { std::int64_t episode, seed; };
struct Wrong { std::string code, reason; std::int64_t answers; bool fatal; };
struct Over { std::string reason; };
struct Alive { std::string pace; };
struct Nothing {};  // an answer to what is not asked any more
using Event = std::variant<Nothing, Admitted, Acted, Begun, Wrong, Over, Alive>;

class Session {
 public:
  static constexpr std::int64_t kSchema = 2;

  Session(std::string name, bool drives, double lease, std::string world = "", std::string software = "C++",
          std::string token = random_token())
      : name_(std::move(name)), token_(std::move(token)), world_(std::move(world)), software_(std::move(software)),
        lease_(lease), drives_(drives) {}

  // To be said first, and whenever the actor does not know this simulator.
  Frames hello() {
    admitted_.reset();
    return {header("hello", {{"name", name_}, {"token", token_}, {"drives", drives_}, {"world", world_},
                             {"lease", lease_}, {"software", software_}, {"oldest_schema", kSchema},
                             {"newest_schema", kSchema}})};
  }

  // These agents ask for actions; `rewards`: what each earned since its last one, none for 0; `clock`: seconds on the
  // simulator's own clock when this was seen.
  Frames observe(const std::vector<Seen>& seen, const std::map<std::string, double>& rewards, const Names& elements = {},
                 std::int64_t late = 0, double clock = 0) {
    std::string arrays;
    Names agents;
    for (const Seen& one : seen) {
      const Place& place = place_of(one.agent);
      pack(arrays, place.observation, one.observation, one.agent + ": observation");
      pack(arrays, place.mask, one.mask, one.agent + ": action_mask");
      agents.push_back(one.agent);
    }
    List earned;
    for (const auto& agent : rewards.empty() ? Names{} : agents)
      earned.emplace_back(rewards.count(agent) ? rewards.at(agent) : 0.0);
    episode_ += !playing_;
    playing_ = true;
    asked_[++number_] = {agents, elements};
    return {header("observe", {{"number", number_}, {"episode", episode_}, {"agents", list(agents)},
                               {"rewards", earned}, {"elements", list(elements)}, {"late", late}, {"clock", clock}}),
            arrays};
  }

  // The episode ended for these agents; `over`: for everybody.
  Frames end(const std::vector<Ending>& endings, bool truncated, bool over = true) {
    std::string arrays;
    List agents, rewards, infos;
    bool telling = false;
    for (const Ending& one : endings) {
      if (truncated) pack(arrays, place_of(one.agent).observation, one.last, one.agent + ": last observation");
      agents.emplace_back(one.agent);
      rewards.emplace_back(one.reward);
      infos.emplace_back(told(one));
      telling = telling || !one.info.empty();
    }
    playing_ = playing_ && !over;
    Map fields{{"episode", episode_}, {"agents", agents}, {"rewards", rewards}, {"truncated", truncated}, {"over", over}};
    if (telling) fields.emplace_back("infos", infos);
    Frames frames{header("end", fields)};
    if (!arrays.empty()) frames.push_back(arrays);
    return frames;
  }

  Frames ping(double clock = 0) { return {header("ping", {{"clock", clock}})}; }
  Frames bye(const std::string& reason) { return {header("bye", {{"reason", reason}})}; }

  // What the actor said.
  Event take(const Frames& frames) {
    const Value message = Unpacker::unpack(frames.at(0));
    const auto type = message["type"].as<std::string>();
    if (type == "admit") return enter(message);
    if (type == "act") return acted(message, frames);
    if (type == "pong") return Alive{message["pace"].as<std::string>()};
    if (type == "bye") return Over{message.find("reason") ? message["reason"].as<std::string>() : ""};
    if (type == "reset") {
      episode_ = message["episode"].as<std::int64_t>();
      playing_ = true;
      return Begun{episode_, message["seed"].as<std::int64_t>()};
    }
    if (type == "fault") {
      const Value *answers = message.find("answers"), *fatal = message.find("fatal");
      return Wrong{message["code"].as<std::string>(), message["reason"].as<std::string>(),
                   answers ? answers->as<std::int64_t>() : 0, fatal && fatal->as<bool>()};
    }
    throw Error("a message of type " + type + " came, which no actor says; install the same release on both sides");
  }

  const std::optional<Admitted>& admitted() const { return admitted_; }
  bool drives() const { return drives_; }
  bool playing() const { return playing_; }

  // The world's only agent.
  std::string only() const {
    if (!admitted_ || admitted_->places.size() != 1 || admitted_->places[0].many)
      throw Error("the world has several agents, or the simulator is not connected; name an agent");
    return admitted_->places[0].agent;
  }

 private:
  static std::string random_token() {
    std::random_device device;
    std::string token;
    for (int i = 0; i < 16; ++i) token.push_back("0123456789abcdef"[device() % 16]);
    return token;
  }

  static Map told(const Ending& one) {
    Map found;
    for (const auto& [name, value] : one.info) {
      const double* number = std::get_if<double>(&value);
      if (number && !std::isfinite(*number)) throw Fault("value", one.agent + ": " + name + " is no finite number");
      found.emplace_back(name, number ? Value(*number) : Value(std::get<bool>(value)));
    }
    return found;
  }

  static List list(const Names& names) { return List(names.begin(), names.end()); }

  static std::string header(const char* type, Map fields) {
    Map all{{"type", type}, {"schema_number", kSchema}};
    all.insert(all.end(), fields.begin(), fields.end());
    return Packer::pack(all);
  }

  // Of the agent `name`, which may be one of many: `template.0`.
  const Place& place_of(const std::string& name) const {
    if (!admitted_) throw Error("the simulator is not connected; call connect first");
    for (const Place& place : admitted_->places) {
      if (!place.many && place.agent == name) return place;
      for (std::int64_t k = 0; k < place.many && name.compare(0, place.agent.size(), place.agent) == 0; ++k)
        if (name == place.agent + "." + std::to_string(k)) return place;
    }
    throw Fault("agent", "there is no agent '" + name + "' in this world; see places in admit");
  }

  Event enter(const Value& message) {
    Admitted admitted{message["run"].as<std::string>(), message["name"].as<std::string>(),
                      message["world"].as<std::string>(), message["hash"].as<std::string>(),
                      message["incarnation"].as<std::int64_t>(), message["copy_number"].as<std::int64_t>(),
                      message["lease"].number(),
                      message.find("deadline") ? message["deadline"].number() : 0,
                      message.find("fallback") ? message["fallback"].as<std::string>() : "last", {}};
    for (const Value& place : message["places"].as<List>()) admitted.places.push_back(Place::of(place));
    number_ = episode_ = 0;
    playing_ = false;
    asked_.clear();
    admitted_ = admitted;
    return admitted;
  }

  Event acted(const Value& message, const Frames& frames) {
    const auto answers = message["answers"].as<std::int64_t>();
    const auto found = asked_.find(answers);
    if (found == asked_.end()) return Nothing{};
    const auto [agents, elements] = found->second;
    asked_.erase(found);
    if (frames.size() != 2) throw Error("an act came without its one frame of actions; see the actor's log");
    Acted done{answers, {}};
    std::size_t at = 0;
    for (const auto& agent : agents)
      for (const Column& column : place_of(agent).action)
        if (elements.empty() || holds(elements, column.name)) unpack(done.actions[agent], column, frames.at(1), at);
    return done;
  }

  // Whether a column `action.arm.x` belongs to an element called `arm`.
  static bool holds(const Names& elements, const std::string& column) {
    for (const auto& name : elements)
      if ((column + ".").rfind("action." + name + ".", 0) == 0) return true;
    return false;
  }

  std::string name_, token_, world_, software_;
  double lease_;
  bool drives_, playing_ = false;
  std::int64_t number_ = 0, episode_ = 0;
  std::map<std::int64_t, std::pair<Names, Names>> asked_;  // number of an open `observe` -> agents, elements
  std::optional<Admitted> admitted_;
};

}  // namespace rookery
