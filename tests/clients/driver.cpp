// What tests want of the C++ client: `driver golden ADMIT ACT ACTION` prints the messages of the golden session as
// hexadecimal text; `driver wrong tcp://HOST:PORT` breaks the rules, and prints what it is told; `driver play
// tcp://HOST:PORT?keys=KEYS` plays short episodes, driven by whom it connects to with these keys; `driver hall
// tcp://HOST:PORT` plays two agents, whose spaces are nested, and one whose action is late.
#include <iostream>

#include "../../protocol/clients/cpp/rookery.hpp"

using namespace rookery;

namespace {

std::string hex(const std::string& raw) {
  std::string text;
  for (const char one : raw)
    for (const int half : {one >> 4 & 15, one & 15}) text.push_back("0123456789abcdef"[half]);
  return text;
}

std::string raw(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

void show(const std::string& name, const Frames& frames) {
  std::cout << name << ':';
  for (const auto& frame : frames) std::cout << ' ' << hex(frame);
  std::cout << std::endl;
}

void golden(char** given) {
  Session session("robot-1", true, 10, "", "robot 2.1", "00112233445566ff");
  show("hello", session.hello());
  session.take({raw(given[0])});
  show("observe", session.observe({{"gem", {1, 2}}}, {}));
  const auto acted = std::get<Acted>(session.take({raw(given[1]), raw(given[2])}));
  std::cout << "action: " << acted.actions.at("gem").at(0) << std::endl;
  show("observe-rewarded", session.observe({{"gem", {3, 4}}}, {{"gem", 0.5}}, {}, 0, 2.5));
  show("end", session.end({{"gem", -1, {5, 6}}}, true));
  show("end-told", session.end({{"gem", -1, {}, {{"far", 2.5}, {"won", true}}}}, false));
  show("ping", session.ping(1.5));
  show("bye", session.bye("its battery is empty"));
}

void numbers(const std::string& dtype, const std::string& text) {
  const Column column{"observation", dtype, {}};
  const auto bytes = raw(text);
  std::string again;
  column.put(again, column.get(bytes, 0));
  std::cout << dtype << ' ' << text << ": " << column.get(bytes, 0) << ' ' << hex(again) << std::endl;
}

template <class Breaking>
void told(const std::string& what, Breaking breaking) {
  try {
    breaking();
    std::cout << what << ": nothing" << std::endl;
  } catch (const std::runtime_error& fault) {
    std::cout << what << ": " << fault.what() << std::endl;
  }
}

// Said again if nobody answers: it may have gone with a connection that was ending.
Frames answer(Line& line, const Frames& frames) {
  for (int i = 0; i < 60; ++i) {
    line.wait(ZMQ_POLLOUT, 10);
    line.send(frames);
    auto answered = line.receive(1);
    if (!answered.empty()) return answered;
  }
  throw Error("nobody answered");
}

void wrong(const std::string& address) {
  Options impatient;
  impatient.patience = 0.5;
  Simulator sim(address, "sim", impatient);
  sim.act({1, 0});
  told("wrong spaces", [&] { sim.act({1, 0, 0}, 1); });
  told("unknown agent", [&] { sim.act({1, 0}, 0, {}, "nobody"); });
  told("not a number", [&] { sim.act({NAN, 0}); });
  told("not a reward", [&] { sim.act({1, 0}, NAN); });
  told("duplicate identity", [&] { Simulator(address, "sim", impatient); });
  told("another world", [&] {
    Options other = impatient;
    other.world = "0011223344556677";
    Simulator(address, "other", other);
  });
  told("served all the same", [&] { sim.act({2, 0}, 2); });

  Line line(address);
  Session session("raw", true, 30);
  const auto refused = [&](const std::string& what, const Frames& frames) {
    told(what, [&] {
      const auto event = session.take(answer(line, frames));
      if (const auto* fault = std::get_if<Wrong>(&event)) throw Fault(fault->code, fault->reason);
    });
  };
  refused("version skew", {Packer::pack(Map{{"type", "hello"}, {"schema_number", std::int64_t{1}}, {"name", "late"},
                                            {"token", "t"}, {"oldest_schema", std::int64_t{7}},
                                            {"newest_schema", std::int64_t{9}}})});
  refused("half a hello", {session.hello()[0].substr(0, 40)});
  refused("garbage", {"\xc1 garbage", "more"});
  refused("before hello", session.ping());
  refused("hello", session.hello());
  auto frames = session.observe({{"walker", {1, 0}}}, {});
  refused("no observation", {frames[0]});
  refused("an action", frames);
  line.send(session.end({{"walker", 1.0}}, false));
  refused("ended twice", session.end({{"walker", 1.0}}, false));
  line.send({session.ping()[0], std::string(1 << 20, 'x')});
  refused("after a frame too large", session.ping());
}

void play(const std::string& endpoint) {
  Options driven;
  driven.drives = false;
  Simulator sim(endpoint, "sim", driven);
  for (;;) try {
    const auto seed = static_cast<double>(sim.begin());
    for (double step = 0; step < 5; ++step) sim.act({step, seed}, step);
    sim.end_episode(1, std::fmod(seed, 2) == 0, {5, seed}, "", {{"far", 2.5}, {"won", true}});
  } catch (const EpisodeCut&) {  // it is told when to begin again
  } catch (const RunOver&) {
    return;
  }
}

void tell(const std::string& what, const Actions& actions) {
  std::cout << what << ':';
  for (const auto& [agent, numbers] : actions)
    for (const double number : numbers) std::cout << ' ' << agent << '=' << number;
  std::cout << std::endl;
}

void hall(const std::string& address) {
  const Numbers all(5, 1), guard{3, 0.5, -0.5, 0.25}, later{1, 0, 0, 1};
  Simulator sim(address, "hall");
  tell("both", *sim.act_all({{"guard", guard, all}, {"thief", {7, 200}}}, {}, {}, 1.5));
  tell("one", *sim.act_all({{"guard", later, all}}, {{"guard", 2.0}, {"thief", 1.0}}, {"go"}));
  sim.end_all({{"guard", -1, guard}}, true, false);
  sim.end_all({{"thief", 0.5}});
  told("no element", [&] { sim.act_all({{"guard", guard, all}}, {}, {"wings"}); });
  Options hasty;
  hasty.deadline = 0.05;
  Simulator late(address, "late", hasty);
  int missed = 0;
  while (!late.act({9, 9}, missed ? 1 : 0, {}, "thief")) ++missed;
  while (!late.act({1, 1}, 1, {}, "thief")) continue;
  std::cout << "missed: " << missed << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "golden") golden(arguments + 2);
  for (int i = 5; mode == "golden" && i + 1 < count; i += 2) numbers(arguments[i], arguments[i + 1]);
  if (mode == "wrong") wrong(arguments[2]);
  if (mode == "hall") hall(arguments[2]);
  if (mode == "play") play(arguments[2]);
}
