// An actor in C++, written from protocol/README.md: it plays a light that it has to follow, in pictures of the size that
// the run has, by the graph of its policy in ONNX Runtime. Segments travel inline, weights are asked for.

#include <onnxruntime_cxx_api.h>
#include <unistd.h>
#include <zmq.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "../../protocol/clients/cpp/rookery_arrays.hpp"

using namespace rookery;
using Count = std::int64_t;
using Frames = std::vector<std::string>;

constexpr Count kSchema = 2, kCopies = 8;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string hex(const std::string& bytes) {
  std::string found;
  for (const char byte : bytes)
    for (const int shift : {4, 0}) found += "0123456789abcdef"[byte >> shift & 15];
  return found;
}

template <class T>
void append(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

std::uint32_t crc32(const std::string& bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

// In hexadecimal digits (FIPS 180-4).
std::string sha256(std::string text) {
  std::uint32_t k[64], h[8];
  const auto root = [](long double found) { return static_cast<std::uint32_t>((found - std::floor(found)) * 4294967296.0L); };
  for (int number = 2, i = 0; i < 64; ++number) {
    bool prime = true;
    for (int by = 2; by * by <= number; ++by) prime = prime && number % by;
    if (!prime) continue;
    if (i < 8) h[i] = root(std::sqrt(static_cast<long double>(number)));
    k[i++] = root(std::cbrt(static_cast<long double>(number)));
  }
  const std::uint64_t bits = 8 * text.size();
  text += '\x80';
  while (text.size() % 64 != 56) text += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
  const auto turned = [](std::uint32_t x, int by) { return x >> by | x << (32 - by); };
  for (std::size_t at = 0; at < text.size(); at += 64) {
    std::uint32_t w[64], v[8];
    for (std::size_t i = 0; i < 16; ++i) {
      w[i] = 0;
      for (std::size_t j = 0; j < 4; ++j) w[i] = w[i] << 8 | static_cast<std::uint8_t>(text[at + 4 * i + j]);
    }
    for (int i = 16; i < 64; ++i)
      w[i] = w[i - 16] + w[i - 7] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) +
             (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    std::copy(h, h + 8, v);
    for (int i = 0; i < 64; ++i) {
      const auto one = v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
      const auto two = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      std::copy_backward(v, v + 7, v + 8);
      v[4] += one;
      v[0] = one + two;
    }
    for (int i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string digest;
  for (const std::uint32_t word : h)
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift);
  return hex(digest);
}

// A document, which is JSON.
class Json {
 public:
  static Value parse(const std::string& text) { return Json(text).value(); }

 private:
  explicit Json(const std::string& text) : text_(text) {}

  char next() {
    while (std::isspace(text_.at(at_))) ++at_;
    return text_[at_];
  }
  bool goes_on(char end) {  // behind an element of a list or map
    const char found = next();
    ++at_;
    return found != end;
  }
  std::string text() {
    std::string found;
    for (++at_; text_.at(at_) != '"'; ++at_) found += text_[at_ += text_[at_] == '\\'];
    ++at_;
    return found;
  }
  Value value() {
    const char first = next();
    if (first == '"') return text();
    if (first == '[' || first == '{') {
      const char end = first == '[' ? ']' : '}';
      List list;
      Map map;
      ++at_;
      if (next() == end) ++at_;
      else
        do {
          next();
          std::string key = end == '}' ? text() : "";
          if (end == '}') next(), ++at_;
          if (end == '}') map.emplace_back(key, value());
          else list.push_back(value());
        } while (goes_on(end));
      return end == '}' ? Value(map) : Value(list);
    }
    const auto length = text_.find_first_of(",]} \n", at_) - at_;
    const std::string word = text_.substr(at_, length);
    at_ += word.size();
    if (word == "true" || word == "false") return word == "true";
    if (word == "null") return {};
    return word.find_first_of(".eE") == std::string::npos ? Value(Count(std::stoll(word))) : Value(std::stod(word));
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

const std::string& text_of(const Value& map, const char* key) { return map[key].as<std::string>(); }
Count count_of(const Value& map, const char* key) { return map[key].as<Count>(); }
std::size_t size_of(const Column& column) { return column.items() * static_cast<std::size_t>(column.width()); }

class Line {
 public:
  Line(void* context, int kind, const std::string& address) : kind_(kind), socket_(zmq_socket(context, kind)) {
    const std::pair<int, int> options[] = {{ZMQ_LINGER, 0}, {ZMQ_HEARTBEAT_IVL, 1000}, {ZMQ_HEARTBEAT_TIMEOUT, 30000},
                                           {ZMQ_CONNECT_TIMEOUT, 2000}, {ZMQ_HANDSHAKE_IVL, 5000}, {ZMQ_TCP_MAXRT, 5000},
                                           {ZMQ_RECONNECT_IVL, 100}, {ZMQ_RECONNECT_IVL_MAX, 1000}, {ZMQ_SNDHWM, 100000}};
    for (const auto& [option, value] : options) zmq_setsockopt(socket_, option, &value, sizeof value);
    zmq_connect(socket_, address.c_str());
  }
  ~Line() { zmq_close(socket_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void subscribe(const std::string& topic, int option = ZMQ_SUBSCRIBE) { zmq_setsockopt(socket_, option, topic.data(), topic.size()); }

  void send(const char* type, Map fields, const Frames& frames = {}) {
    Map header{{"type", type}, {"schema_number", kSchema}};
    header.insert(header.end(), fields.begin(), fields.end());
    const std::string first = Packer::pack(header);
    zmq_send(socket_, first.data(), first.size(), frames.empty() ? 0 : ZMQ_SNDMORE);
    for (std::size_t i = 0; i < frames.size(); ++i)
      zmq_send(socket_, frames[i].data(), frames[i].size(), i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
  }

  // Calls `hear` with the header, the frames behind it and the topic of each message that is there.
  void poll(const std::function<void(const Value&, const Frames&, const std::string&)>& hear) {
    for (Frames frames; !(frames = received()).empty();) {
      const std::size_t at = kind_ == ZMQ_SUB;
      hear(Unpacker::unpack(frames.at(at)), {frames.begin() + static_cast<std::ptrdiff_t>(at) + 1, frames.end()}, frames[0]);
    }
  }

 private:
  Frames received() {
    Frames frames;
    for (int more = 1; more;) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      const bool there = zmq_msg_recv(&part, socket_, frames.empty() ? ZMQ_DONTWAIT : 0) >= 0;
      if (there) frames.emplace_back(static_cast<char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      more = there && zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    return frames;
  }

  int kind_;
  void* socket_;
};

struct Layout {
  explicit Layout(const std::string& text) {
    const Value plain = Json::parse(text);
    length = static_cast<std::size_t>(count_of(plain, "length"));
    for (const Value& field : plain["fields"].as<List>()) {
      const List& told = field.as<List>();
      Column column{told[0].as<std::string>(), told[1].as<std::string>(), {}};
      for (const Value& size : told[2].as<List>()) column.shape.push_back(size.as<Count>());
      order.push_back(column.name);
      rows[column.name] = told[3].as<std::string>() == "row" ? length + 1 : 1;
      columns.emplace(column.name, column);
    }
  }
  std::size_t length;
  std::vector<std::string> order;
  std::map<std::string, std::size_t> rows;
  std::map<std::string, Column> columns;
};

std::mt19937_64 dice{std::random_device{}()};

// One copy of the world: the light is at `at`; who says so earns 1, who says what comes next may end the episode.
struct Stream {
  Stream(Count number, const Layout& fields, Count actions)
      : index(number), layout(fields), choices(actions), memory(layout.columns.at("state").items()) {
    begin();
    clear();
  }

  void begin() {
    steps = 0;
    at = static_cast<Count>(dice() % static_cast<std::uint64_t>(choices));
    std::fill(memory.begin(), memory.end(), 0.0f);
  }

  void clear() {  // begins a segment
    valid = truncations = 0;
    ++sequence;
    episode = ended;
    for (const auto& [name, column] : layout.columns) columns[name] = std::string(layout.rows.at(name) * size_of(column), '\0');
    for (std::size_t i = 0; i < layout.columns.at("final_row").items(); ++i) set("final_row", i, -1);
    columns["state"] = {reinterpret_cast<const char*>(memory.data()), memory.size() * sizeof(float)};
  }

  std::string seen() const {
    std::string picture(size_of(layout.columns.at("observation")), '\0');
    for (auto i = static_cast<std::size_t>(at); i < picture.size(); i += static_cast<std::size_t>(choices)) picture[i] = static_cast<char>(255 - steps);
    return picture;
  }

  // One number of a column that is of one number, or of a side table of such.
  void set(const std::string& name, std::size_t place, double number) {
    std::string bytes;
    layout.columns.at(name).put(bytes, number);
    columns[name].replace(place * bytes.size(), bytes.size(), bytes);
  }
  void show(const std::string& name, std::size_t place) {
    const std::string picture = seen();
    columns[name].replace(place * picture.size(), picture.size(), picture);
  }

  // Acts once and notes the row; whether this ended the episode, whose `earned` and `lasted` are told then.
  bool step(Count action, double version, double log_probability, double value) {
    show("observation", valid);
    const bool right = action == at;
    earned = (steps ? earned : 0) + right;
    lasted = ++steps;
    at = (at + 1) % choices;
    const bool terminated = steps > 3 && action == at, truncated = steps == 12 && !terminated;
    const std::pair<const char*, double> row[] = {
        {"action", static_cast<double>(action)}, {"reward", right}, {"terminated", terminated}, {"truncated", truncated},
        {"version", version}, {"log_probability", log_probability}, {"value", value}};
    for (const auto& [name, number] : row) set(name, valid, number);
    oldest = valid ? std::min(oldest, version) : version;
    newest = valid ? std::max(newest, version) : version;
    if (truncated) {
      show("final_observation", truncations);
      set("final_row", truncations++, static_cast<double>(valid));
    }
    ++valid;
    if (!terminated && !truncated) return false;
    ++ended;
    begin();
    return true;
  }

  // The segment, full or short: its record and its columns.
  Frames finish(Count number) {
    show("observation", valid);
    std::string record;
    for (const Count word : {Count(2), number, index, sequence, Count(oldest), Count(newest), Count(0)}) append(record, word);
    append(record, static_cast<std::uint16_t>(valid));
    append(record, std::uint16_t(0));
    append(record, static_cast<std::uint32_t>(2 + 256 * (episode % (1 << 24))));
    Frames frames{record};
    for (const std::string& name : layout.order) frames.push_back(columns[name]);
    return frames;
  }

  Count index, at = 0, sequence = -1, ended = 0, episode = 0, steps = 0, lasted = 0;
  const Layout& layout;
  Count choices;
  std::vector<float> memory;
  std::size_t valid = 0, truncations = 0;
  double earned = 0, oldest = 0, newest = 0;
  std::map<std::string, std::string> columns;
};

// What the policy's graph says, with the weights that it was given last.
class Network {
 public:
  explicit Network(const std::string& graph) : session_(env_, graph.data(), graph.size(), Ort::SessionOptions()) {
    for (std::size_t i = 0; i < session_.GetInputCount(); ++i) {
      names_.push_back(session_.GetInputNameAllocated(i, memory_).get());
      given_.emplace_back(nullptr);
    }
  }

  void give(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape, const std::string& bytes) {
    static const char* const kTypes[] = {"", "<f4", "|u1", "|i1", "<u2", "<i2", "<i4", "<i8", "", "|b1", "<f2", "<f8", "<u4", "<u8"};
    const auto place = std::find(names_.begin(), names_.end(), name);
    if (place == names_.end()) return;  // acting does not need it
    const auto type = std::find(std::begin(kTypes), std::end(kTypes), dtype) - std::begin(kTypes);
    auto made = Ort::Value::CreateTensor(memory_, shape.data(), shape.size(), static_cast<ONNXTensorElementDataType>(type));
    std::memcpy(made.GetTensorMutableRawData(), bytes.data(), bytes.size());
    given_[static_cast<std::size_t>(place - names_.begin())] = std::move(made);
  }

  std::vector<Ort::Value> say(const std::vector<const char*>& outputs) {
    std::vector<const char*> names;
    for (const std::string& name : names_) names.push_back(name.c_str());
    return session_.Run(Ort::RunOptions(), names.data(), given_.data(), given_.size(), outputs.data(), outputs.size());
  }

 private:
  Ort::Env env_;
  Ort::AllocatorWithDefaultOptions memory_;
  Ort::Session session_;
  std::vector<std::string> names_;
  std::vector<Ort::Value> given_;
};

struct Weights {
  Count version = 0;
  std::string flat, entries;
};

class Actor {
 public:
  Actor(std::string probe, const std::string& coordinator) : probe_(std::move(probe)), link_(context_, ZMQ_DEALER, coordinator) {
    for (int i = 0; i < 16; ++i) token_ += "0123456789abcdef"[dice() % 16];
  }

  int run() {
    const Map me{{"role", "actor"}, {"token", token_}, {"release", "document"}, {"host", "cpp"}, {"pid", Count(getpid())}};
    until([this] { return welcome_.has_value(); }, [&] { link_.send("join", me); });
    if (welcome_) {
      until([this] { return !graph_.empty(); }, [this] { link_.send("fetch_graph", identity({{"policy", policy_}})); }, 0.5);
      until([this] { return newest_.version > 0; });
      if (going()) act();
      const std::string error = fault_;
      fault_.clear();
      until([] { return false; }, [&] { link_.send("leave", totals({{"error", error}})); });
      fault_ = error;
    }
    std::cout << "{\"error\": \"" << fault_ << "\", \"produced\": " << produced_ << ", \"settled\": " << settled_
              << ", \"steps\": " << steps_ << "}" << std::endl;
    return !fault_.empty();
  }

 private:
  using Line_ = std::unique_ptr<Line>;

  bool going() const { return fault_.empty() && command_ != "stop"; }

  // Until something holds, or it is to end.
  void until(const std::function<bool()>& holds, const std::function<void()>& again = [] {}, double every = 1) {
    for (double due = 0; serve(), !holds() && going(); zmq_poll(nullptr, 0, 2))
      if (now() >= due) {
        again();
        due = now() + every;
      }
  }

  void serve() {
    link_.poll([this](const Value& header, const Frames& frames, const std::string&) { hear(header, frames); });
    if (experience_) {
      weights_->poll([this](const Value& header, const Frames& frames, const std::string& topic) { adopt(header, frames, topic); });
      acks_->poll([this](const Value& ack, const Frames&, const std::string&) {
        settled_ = std::max(settled_, count_of(ack, "acknowledged"));
        refused_ = count_of(ack, "refused");
        if (refused_) fault_ = text_of(ack, "reason");
        held_.erase(held_.begin(), held_.upper_bound(settled_));
      });
    }
    if (welcome_ && now() >= beat_) {
      link_.send("heartbeat", totals({{"state", state_}}));
      beat_ = now() + (*welcome_)["heartbeat"].number();
    }
  }

  void hear(const Value& header, const Frames& frames) {
    const std::string& type = text_of(header, "type");
    if (type == "refusal" && !header["retry"].as<bool>()) fault_ = text_of(header, "reason");
    if (type == "welcome" && !welcome_) {
      welcome_ = header;
      facts_ = header["specs"].as<List>().at(0);
      policy_ = text_of(facts_, "policy");
    }
    if (type == "graph") {
      graph_ = frames.at(0);
      if (sha256(graph_) != text_of(header, "hash")) fault_ = "the graph was damaged on its way";
    }
    if (type != "status") return;
    untold_.erase(untold_.begin(), untold_.begin() + sent_);
    sent_ = 0;
    if (command_ != "drain" || text_of(header, "command") == "stop") command_ = text_of(header, "command");
    for (const Value& route : header["routes"].as<List>())
      if (text_of(route, "policy") == policy_) reach(route);
  }

  void reach(const Value& route) {
    if (experience_ && count_of(route, "incarnation") != learner_) fault_ = "the learner is another one";
    if (experience_) return;
    learner_ = count_of(route, "incarnation");
    experience_ = std::make_unique<Line>(context_, ZMQ_PUSH, text_of(route, "experience"));
    weights_ = std::make_unique<Line>(context_, ZMQ_SUB, text_of(route, "weights"));
    acks_ = std::make_unique<Line>(context_, ZMQ_SUB, text_of(route, "acknowledgements"));
    weights_->subscribe("b/" + policy_ + "/");
    acks_->subscribe("a/" + policy_ + "/" + text_of(*welcome_, "name") + "/" + std::to_string(count_of(*welcome_, "incarnation")) + "/");
  }

  void adopt(const Value& header, const Frames& frames, const std::string& topic) {
    const Count version = count_of(header, "incarnation") << 40 | count_of(header, "version");
    if (text_of(header, "type") == "beacon") {
      if (count_of(header, "version") && version > newest_.version && asking_.empty())
        weights_->subscribe(asking_ = "w/" + policy_ + "/" + token_ + "/" + std::to_string(++request_) + "/");
    } else if (topic == asking_) {
      weights_->subscribe(asking_, ZMQ_UNSUBSCRIBE);
      asking_.clear();
      if (crc32(frames.at(0)) == count_of(header, "crc") && text_of(header, "wire") == "float32")
        newest_ = {version, frames[0], text_of(header, "entries")};
    }
  }

  // Announces what there is credit for; whether nothing waits any more.
  bool announce() {
    while (announced_ < std::min(produced_, settled_ + count_of(facts_, "credits"))) {
      const Count end = std::min({produced_, settled_ + count_of(facts_, "credits"), announced_ + count_of(facts_, "max_inline")});
      Frames frames(held_.at(announced_ + 1).size());
      for (Count number = announced_ + 1; number <= end; ++number)
        for (std::size_t i = 0; i < frames.size(); ++i) frames[i] += held_.at(number)[i];
      Map fields{{"run", (*welcome_)["run"]}, {"actor", (*welcome_)["name"]}, {"incarnation", (*welcome_)["incarnation"]},
                 {"proof", (*welcome_)["proof"]}, {"policy", policy_}, {"layout", sha256(text_of(facts_, "layout")).substr(0, 16)},
                 {"count", end - announced_}, {"inline", true}, {"after", announced_ > settled_ ? announced_ : Count(0)}};
      experience_->send("segments", fields, frames);
      announced_ = end;
    }
    return announced_ == produced_;
  }

  Map identity(Map more) {
    Map fields{{"name", (*welcome_)["name"]}, {"token", token_}, {"incarnation", (*welcome_)["incarnation"]}};
    fields.insert(fields.end(), more.begin(), more.end());
    return fields;
  }

  Map totals(Map more) {
    const std::pair<std::string, Count> counted[] = {
        {"agent_steps", steps_}, {"env_steps", steps_}, {"produced." + policy_, produced_}, {"backlog." + policy_, produced_ - announced_},
        {"flight." + policy_, announced_ - settled_}, {"refused_messages." + policy_, refused_}};
    Map counters;
    for (const auto& [name, total] : counted) counters.emplace_back(name, static_cast<double>(total));
    more.emplace_back("counters", counters);
    more.emplace_back("episodes", untold_);
    sent_ = static_cast<std::ptrdiff_t>(untold_.size());
    return identity(more);
  }

  void act() {
    const Layout layout(text_of(facts_, "layout"));
    const Value network = Json::parse(text_of(facts_, "network"));
    const Count choices = network["outputs"].as<List>().at(0)["sizes"].as<List>().at(0).as<Count>();
    std::vector<Stream> streams;
    for (Count i = 0; i < kCopies; ++i) streams.emplace_back(i, layout, choices);
    Network policy(graph_);
    state_ = "acting";
    for (Count turn = 0; steps_ < count_of(*welcome_, "quota") && command_ == "go" && going(); ++turn) {
      if (turn % count_of(facts_, "sync_interval") == 0) give(policy);
      step(policy, streams, layout, choices);
      deliver(streams, layout.length);
      until([this] { return announce() || command_ != "go"; });
    }
    deliver(streams, 1);
    state_ = "draining";
    until([this] { return announce() && held_.empty(); });
  }

  void give(Network& policy) {
    adopted_ = newest_;
    const Value entries = Json::parse(adopted_.entries);
    for (const Value& entry : entries.as<List>()) {
      Column column = Column::of(entry);
      const auto offset = static_cast<std::size_t>(count_of(entry, "offset"));
      policy.give("weights." + column.name, column.dtype, column.shape, adopted_.flat.substr(offset, size_of(column)));
    }
  }

  void step(Network& policy, std::vector<Stream>& streams, const Layout& layout, Count choices) {
    std::string seen, remembered;
    for (const Stream& stream : streams) {
      seen += stream.seen();
      for (const float number : stream.memory) append(remembered, number);
    }
    for (const auto& [name, bytes] : {std::pair{"observation", &seen}, std::pair{"state", &remembered}}) {
      const Column& column = layout.columns.at(name);
      std::vector<std::int64_t> shape{kCopies};
      shape.insert(shape.end(), column.shape.begin(), column.shape.end());
      policy.give(name, column.dtype, shape, *bytes);
    }
    const auto said = policy.say({"log_probabilities", "value", "next_state"});
    const float *logs = said[0].GetTensorData<float>(), *values = said[1].GetTensorData<float>(), *states = said[2].GetTensorData<float>();
    for (Stream& stream : streams) {
      double left = std::uniform_real_distribution<double>()(dice);
      Count action = 0;
      while (action < choices - 1 && (left -= std::exp(logs[action])) > 0) ++action;
      stream.memory.assign(states, states + stream.memory.size());
      ++steps_;
      if (stream.step(action, static_cast<double>(adopted_.version), logs[action], *values++))
        untold_.push_back(List{policy_, steps_, Count(1), stream.earned, stream.lasted});
      logs += choices;
      states += stream.memory.size();
    }
  }

  // Finishes and numbers the segments of so many rows.
  void deliver(std::vector<Stream>& streams, std::size_t least) {
    for (Stream& stream : streams) {
      if (stream.valid < least) continue;
      ++produced_;
      const Frames& frames = held_[produced_] = stream.finish(produced_);
      const bool ends = stream.columns["terminated"].find('\1') != std::string::npos;
      if (!probed_ && ends && stream.oldest == stream.newest && adopted_.version % (Count(1) << 40) > 2) {
        std::ofstream file(probe_);
        file << "{\"entries\": " << adopted_.entries << ", \"flat\": \"" << hex(adopted_.flat) << "\", \"frames\": [";
        for (std::size_t i = 1; i < frames.size(); ++i) file << (i > 1 ? ", \"" : "\"") << hex(frames[i]) << "\"";
        file << "]}\n";
        probed_ = true;
      }
      stream.clear();
    }
  }

  void* context_ = zmq_ctx_new();
  std::string probe_, token_, policy_, graph_, asking_, fault_, command_ = "go", state_ = "waiting";
  Line link_;
  Line_ experience_, weights_, acks_;
  std::optional<Value> welcome_;
  Value facts_;
  Weights newest_, adopted_;
  Count learner_ = 0, request_ = 0, steps_ = 0, produced_ = 0, announced_ = 0, settled_ = 0, refused_ = 0;
  std::map<Count, Frames> held_;
  List untold_;
  std::ptrdiff_t sent_ = 0;
  double beat_ = 0;
  bool probed_ = false;
};

int main(int, char** arguments) {
  return Actor(arguments[1], arguments[2]).run();
}
