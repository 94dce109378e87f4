// The headers of messages: msgpack with text keys, as protocol/README.md limits it.
//
// In flows: values. Out flow: bytes in the golden form (shortest integers, numbers as float 64); and back, from any
// valid form. What is no such header is an Error.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace rookery {

// Something that this program, or the other side, should not have done; one sentence.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Value;
using List = std::vector<Value>;
using Map = std::vector<std::pair<std::string, Value>>;  // in the order in which it is written

struct Value {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Map> held;

  Value() = default;
  Value(bool truth) : held(truth) {}
  Value(std::int64_t count) : held(count) {}
  Value(double number) : held(number) {}
  Value(std::string text) : held(std::move(text)) {}
  Value(const char* text) : held(std::string(text)) {}
  Value(List list) : held(std::move(list)) {}
  Value(Map map) : held(std::move(map)) {}

  template <class T>
  const T& as() const {
    if (const T* found = std::get_if<T>(&held)) return *found;
    throw Error("a message came whose field has another type than protocol/README.md says; install the same release");
  }

  double number() const {
    const auto* count = std::get_if<std::int64_t>(&held);
    return count ? static_cast<double>(*count) : as<double>();
  }

  // The field `key` of a map; nothing, if it is not there.
  const Value* find(const std::string& key) const {
    for (const auto& [name, value] : as<Map>())
      if (name == key) return &value;
    return nullptr;
  }

  const Value& operator[](const std::string& key) const {
    if (const Value* found = find(key)) return *found;
    throw Error("a message came without its field " + key + "; install the same release on both sides");
  }
};

class Packer {
 public:
  static std::string pack(const Value& value) {
    Packer packer;
    packer.put(value);
    return std::move(packer.out_);
  }

 private:
  void put(const Value& value) {
    std::visit([this](const auto& held) { write(held); }, value.held);
  }
  void write(std::monostate) { byte(0xc0); }
  void write(bool truth) { byte(truth ? 0xc3 : 0xc2); }
  void write(double number) {
    std::uint64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    big(0xcb, bits, 8);
  }
  void write(std::int64_t count) {
    const auto bits = static_cast<std::uint64_t>(count);
    if (count >= -32 && count < 128) byte(static_cast<std::uint8_t>(count));
    else if (count >= 0) count < 256 ? big(0xcc, bits, 1) : count < 65536 ? big(0xcd, bits, 2)
                         : count <= 0xffffffff ? big(0xce, bits, 4) : big(0xcf, bits, 8);
    else count >= -128 ? big(0xd0, bits, 1) : count >= -32768 ? big(0xd1, bits, 2)
         : count >= -2147483648LL ? big(0xd2, bits, 4) : big(0xd3, bits, 8);
  }
  void write(const std::string& text) {
    const auto size = text.size();
    if (size < 32) byte(static_cast<std::uint8_t>(0xa0 | size));
    else size < 256 ? big(0xd9, size, 1) : size < 65536 ? big(0xda, size, 2) : big(0xdb, size, 4);
    out_ += text;
  }
  void write(const List& list) {
    const auto size = list.size();
    if (size < 16) byte(static_cast<std::uint8_t>(0x90 | size));
    else size < 65536 ? big(0xdc, size, 2) : big(0xdd, size, 4);
    for (const Value& value : list) put(value);
  }
  void write(const Map& map) {
    const auto size = map.size();
    if (size < 16) byte(static_cast<std::uint8_t>(0x80 | size));
    else size < 65536 ? big(0xde, size, 2) : big(0xdf, size, 4);
    for (const auto& [key, value] : map) {
      write(key);
      put(value);
    }
  }
  void byte(std::uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void big(std::uint8_t tag, std::uint64_t bits, int bytes) {
    byte(tag);
    while (bytes--) byte(static_cast<std::uint8_t>(bits >> (8 * bytes)));
  }

  std::string out_;
};

class Unpacker {
 public:
  static Value unpack(const std::string& raw) {
    Unpacker unpacker(raw);
    Value value = unpacker.value(1);
    if (unpacker.at_ != raw.size()) throw wrong();
    value.as<Map>();
    return value;
  }

 private:
  static constexpr int kDeepest = 8;

  explicit Unpacker(const std::string& raw) : raw_(raw) {}

  static Error wrong() { return Error("a header came that is no msgpack within the limits of protocol/README.md"); }

  Value value(int depth) {
    const auto tag = static_cast<std::uint8_t>(big(1));
    if (tag < 0x80 || tag >= 0xe0) return static_cast<std::int64_t>(static_cast<std::int8_t>(tag));
    if (tag < 0x90) return map(tag & 0x0f, depth);
    if (tag < 0xa0) return list(tag & 0x0f, depth);
    if (tag < 0xc0) return text(tag & 0x1f);
    switch (tag) {
      case 0xc0: return {};
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xca: return static_cast<double>(bits_as<float>(static_cast<std::uint32_t>(big(4))));
      case 0xcb: return bits_as<double>(big(8));
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return whole(big(1 << (tag - 0xcc)));
      case 0xd0: return static_cast<std::int64_t>(static_cast<std::int8_t>(big(1)));
      case 0xd1: return static_cast<std::int64_t>(static_cast<std::int16_t>(big(2)));
      case 0xd2: return static_cast<std::int64_t>(static_cast<std::int32_t>(big(4)));
      case 0xd3: return static_cast<std::int64_t>(big(8));
      case 0xd9: case 0xda: case 0xdb: return text(big(1 << (tag - 0xd9)));
      case 0xdc: case 0xdd: return list(big(2 << (tag - 0xdc)), depth);
      case 0xde: case 0xdf: return map(big(2 << (tag - 0xde)), depth);
      default: throw wrong();
    }
  }

  Value list(std::uint64_t size, int depth) {
    within(size, depth);
    List found;
    while (size--) found.push_back(value(depth + 1));
    return found;
  }

  Value map(std::uint64_t size, int depth) {
    within(size, depth);
    Map found;
    while (size--) {
      auto key = value(depth + 1).as<std::string>();
      found.emplace_back(std::move(key), value(depth + 1));
    }
    return found;
  }

  Value text(std::uint64_t size) {
    if (size > raw_.size() - at_) throw wrong();
    at_ += size;
    return raw_.substr(at_ - size, size);
  }

  // An element has a byte at least: whoever announces more than there are is not believed.
  void within(std::uint64_t size, int depth) const {
    if (size > raw_.size() - at_ || depth > kDeepest) throw wrong();
  }

  static Value whole(std::uint64_t bits) {
    if (bits >> 63) throw wrong();
    return static_cast<std::int64_t>(bits);
  }

  template <class T, class U>
  static T bits_as(U bits) {
    T number;
    static_assert(sizeof number == sizeof bits);
    std::memcpy(&number, &bits, sizeof number);
    return number;
  }

  std::uint64_t big(int bytes) {
    if (static_cast<std::size_t>(bytes) > raw_.size() - at_) throw wrong();
    std::uint64_t bits = 0;
    while (bytes--) bits = bits << 8 | static_cast<std::uint8_t>(raw_[at_++]);
    return bits;
  }

  const std::string& raw_;
  std::size_t at_ = 0;
};

}  // namespace rookery
