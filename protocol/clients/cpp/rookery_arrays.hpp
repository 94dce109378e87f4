// What an agent sees and does, as numbers in this program, from and to the arrays in frames: little-endian, in C order,
// one column behind another. Integers beyond 2^53 are rounded: a double holds no more.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "rookery_msgpack.hpp"

namespace rookery {

using Numbers = std::vector<double>;

// One array of what an agent observes, may do or does.
struct Column {
  std::string name, dtype;
  std::vector<std::int64_t> shape;

  static Column of(const Value& plain) {
    Column column{plain["name"].as<std::string>(), plain["dtype"].as<std::string>(), {}};
    for (const Value& size : plain["shape"].as<List>()) column.shape.push_back(size.as<std::int64_t>());
    if (column.dtype.size() != 3 || std::string("fiub").find(column.kind()) == std::string::npos)
      throw Error("the actor speaks of arrays of type " + column.dtype + ", which this client does not know");
    return column;
  }

  std::size_t items() const {
    std::size_t count = 1;
    for (auto size : shape) count *= static_cast<std::size_t>(size);
    return count;
  }
  char kind() const { return dtype[1]; }
  int width() const { return dtype[2] - '0'; }

  // Whether its type can hold a number; floats are rounded.
  bool fits(double number) const {
    if (kind() == 'f') return width() == 2 ? std::fabs(number) < 65520 : width() == 4 ? std::fabs(number) < 0x1.ffffffp127
                                                                                       : std::isfinite(number);
    if (kind() == 'b') return number == 0 || number == 1;
    const int bits = 8 * width() - (kind() == 'i');
    const double low = kind() == 'i' ? -std::ldexp(1.0, bits) : 0;
    return number == std::trunc(number) && number >= low && number < std::ldexp(1.0, bits);
  }

  // One number as it lies in a frame.
  void put(std::string& frame, double number) const {
    std::uint64_t bits = 0;
    if (kind() == 'f') bits = width() == 8 ? raw<std::uint64_t>(number)
                              : width() == 4 ? raw<std::uint32_t>(static_cast<float>(number)) : half(number);
    else if (kind() == 'b') bits = number != 0;
    else bits = number < 0 ? static_cast<std::uint64_t>(static_cast<std::int64_t>(number))
                           : static_cast<std::uint64_t>(number);
    for (int i = 0; i < width(); ++i) frame.push_back(static_cast<char>(bits >> (8 * i)));
  }

  // The number at byte `at` of a frame.
  double get(const std::string& frame, std::size_t at) const {
    std::uint64_t bits = 0;
    for (int i = width(); i--;) bits = bits << 8 | static_cast<std::uint8_t>(frame[at + static_cast<std::size_t>(i)]);
    if (kind() == 'f') return width() == 8 ? raw<double>(bits)
                              : width() == 4 ? raw<float>(static_cast<std::uint32_t>(bits)) : whole(bits);
    if (kind() != 'i') return static_cast<double>(bits);
    const int unused = 64 - 8 * width();
    return static_cast<double>(static_cast<std::int64_t>(bits << unused) >> unused);
  }

 private:
  template <class To, class From>
  static To raw(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
  }

  // IEEE 754 binary16: a sign, five bits of exponent, ten of fraction.
  static std::uint64_t half(double number) {
    const std::uint64_t sign = std::signbit(number) ? 0x8000 : 0;
    if (std::isnan(number)) return sign | 0x7e00;
    const double size = std::fabs(number);
    if (size >= 65520) return sign | 0x7c00;
    const int exponent = std::max(size > 0 ? std::ilogb(size) : -14, -14);
    const auto steps = static_cast<std::uint64_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return sign | (steps + (static_cast<std::uint64_t>(exponent + 14) << 10));
  }
  static double whole(std::uint64_t bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
    const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                                       : std::ldexp(exponent ? 1024 + fraction : fraction, std::max(exponent, 1) - 25);
    return bits >> 15 ? -size : size;
  }
};

using Columns = std::vector<Column>;

// An agent, or a template of many, and the arrays that stand for it in frames.
struct Place {
  std::string agent;
  std::int64_t many = 0;
  Columns observation, mask, action;
  bool atomic = true;

  static Place of(const Value& plain) {
    const auto columns = [&plain](const char* name) {
      Columns found;
      for (const Value& column : plain[name].as<List>()) found.push_back(Column::of(column));
      return found;
    };
    return {plain["agent"].as<std::string>(), plain["many"].as<std::int64_t>(), columns("observation"),
            columns("mask"), columns("action"), plain["atomic"].as<bool>()};
  }
};

// A refusal: `code` is for programs, what() one sentence for people (protocol/README.md, What is refused of simulators).
struct Fault : Error {
  std::string code;
  Fault(std::string name, const std::string& reason) : Error(reason + " (" + name + ")"), code(std::move(name)) {}
};

// Numbers of all columns, one column behind another, as they lie in a frame.
inline void pack(std::string& frame, const Columns& columns, const Numbers& numbers, const std::string& whose) {
  std::size_t wanted = 0, at = 0;
  std::string listed;
  for (const Column& column : columns) {
    wanted += column.items();
    listed += (listed.empty() ? "" : ", ") + std::to_string(column.items()) + " of " + column.name;
  }
  if (numbers.size() != wanted)
    throw Fault("size", whose + " should be " + std::to_string(wanted) + " numbers, not " +
                            std::to_string(numbers.size()) + ": " + (listed.empty() ? "it has no columns" : listed));
  for (const Column& column : columns)
    for (std::size_t i = column.items(); i--; ++at) {
      if (!column.fits(numbers[at])) {
        std::ostringstream said;
        said << whose << " has " << numbers[at] << ", which is no number of type " << column.dtype;
        throw Fault("value", said.str());
      }
      column.put(frame, numbers[at]);
    }
}

// The numbers of one column that begins at byte `at`, which is moved behind it.
inline void unpack(Numbers& numbers, const Column& column, const std::string& frame, std::size_t& at) {
  const auto size = column.items() * static_cast<std::size_t>(column.width());
  if (frame.size() < at + size) throw Error("an action came that is shorter than places in admit say; see the actor's log");
  for (const auto end = at + size; at < end; at += static_cast<std::size_t>(column.width()))
    numbers.push_back(column.get(frame, at));
}

}  // namespace rookery
