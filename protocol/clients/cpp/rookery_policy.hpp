// A policy that `rookery export --format onnx` wrote, inside a game, over ONNX Runtime (libonnxruntime): without a run,
// an actor or Python.
//
//     Ort::Env env;
//     Ort::Session session = rookery::open_policy(env, "cartpole.onnx");
//     rookery::Policy policy(session);
//     auto action = policy.act(observation);
//     ...
//     policy.end_episode();
#pragma once

#include <onnxruntime_cxx_api.h>  // not found? apt-get install libonnxruntime-dev, and -I/usr/include/onnxruntime

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "rookery_arrays.hpp"

namespace rookery {

// The session of a policy's file; Fault where it cannot be read.
inline Ort::Session open_policy(Ort::Env& env, const std::string& file) try {
  return Ort::Session(env, std::filesystem::path(file).c_str(), Ort::SessionOptions());
} catch (const Ort::Exception& fault) {
  throw Fault("policy", file + " cannot be read (" + fault.what() +
                            "); is it there, whole, and written by rookery export --format onnx?");
}

// One agent's; several may share a session, as each remembers for itself.
class Policy {
 public:
  explicit Policy(Ort::Session& session) : session_(session) {
    bool known = true;
    for (std::size_t i = 0; i < session.GetInputCount(); ++i) {
      const std::string name = session.GetInputNameAllocated(i, memory_).get();
      Columns* const columns = name == "state" ? &state_
                               : is(name, "observation") || is(name, "common") ? &seen_
                               : is(name, "action_mask") ? &masks_ : nullptr;
      if (columns) columns->push_back(column(name, session.GetInputTypeInfo(i)));
      known = known && columns;
    }
    for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
      const std::string name = session.GetOutputNameAllocated(i, memory_).get();
      if (is(name, "action")) acted_.push_back(column(name, session.GetOutputTypeInfo(i)));
    }
    if (!known || acted_.empty())
      throw Fault("policy", "the file takes and gives what no policy does; write it by rookery export --format onnx");
    end_episode();
  }

  // The likeliest action: the numbers of all its columns. `observation` and `mask` are as those that a simulator shows:
  // the numbers of all columns, one behind another.
  Numbers act(const Numbers& observation, const Numbers& mask = {}) {
    std::string shown;
    pack(shown, seen_, observation, "the observation");
    pack(shown, masks_, mask, "the mask");
    auto allowed = mask.begin();
    for (const Column& column : masks_) {
      const auto end = allowed + static_cast<std::ptrdiff_t>(column.items());
      if (std::find(allowed, end, 1.0) == end)
        throw Fault("mask", "the mask allows nothing of " + column.name + "; ask for no action then");
      allowed = end;
    }
    shown += remembered_;
    std::vector<const char*> given, wanted;
    std::vector<Ort::Value> rows;
    std::size_t at = 0;
    for (const Columns* columns : {&seen_, &masks_, &state_})
      for (const Column& column : *columns) {
        given.push_back(column.name.c_str());
        rows.push_back(row(column, shown, at));
      }
    for (const Column& column : acted_) wanted.push_back(column.name.c_str());
    if (!state_.empty()) wanted.push_back("next_state");
    const auto said = session_.Run(Ort::RunOptions(), given.data(), rows.data(), rows.size(), wanted.data(), wanted.size());
    if (!state_.empty()) remembered_ = bytes(said.back(), state_[0]);
    Numbers action;
    for (std::size_t i = 0; i < acted_.size(); ++i) unpack(action, acted_[i], bytes(said[i], acted_[i]), at = 0);
    return action;
  }

  // What it remembers is forgotten: the next thing that it sees begins another episode.
  void end_episode() { remembered_.assign(state_.empty() ? 0 : size(state_[0]), '\0'); }

 private:
  // ONNX's type of an element -> NumPy's.
  static constexpr const char* kTypes[] = {"", "<f4", "|u1", "|i1", "<u2", "<i2", "<i4", "<i8", "",
                                           "|b1", "<f2", "<f8", "<u4", "<u8"};

  // Whether a column is of that kind.
  static bool is(const std::string& name, const std::string& kind) {
    return name == kind || name.rfind(kind + ".", 0) == 0;
  }

  static Column column(const std::string& name, const Ort::TypeInfo& type) {
    const auto told = type.GetTensorTypeAndShapeInfo();
    const auto shape = told.GetShape();
    return {name, kTypes[told.GetElementType()], {shape.begin() + 1, shape.end()}};
  }

  static std::size_t size(const Column& column) { return column.items() * static_cast<std::size_t>(column.width()); }

  // One row of a column, from byte `at` on, which is moved behind it.
  Ort::Value row(const Column& column, const std::string& frame, std::size_t& at) {
    std::vector<std::int64_t> shape{1};
    shape.insert(shape.end(), column.shape.begin(), column.shape.end());
    const auto type = std::find(std::begin(kTypes), std::end(kTypes), column.dtype) - std::begin(kTypes);
    auto made = Ort::Value::CreateTensor(memory_, shape.data(), shape.size(), static_cast<ONNXTensorElementDataType>(type));
    std::memcpy(made.GetTensorMutableRawData(), frame.data() + at, size(column));
    at += size(column);
    return made;
  }

  static std::string bytes(const Ort::Value& row, const Column& column) {
    return {static_cast<const char*>(row.GetTensorRawData()), size(column)};
  }

  Ort::Session& session_;
  Ort::AllocatorWithDefaultOptions memory_;
  Columns seen_, masks_, state_, acted_;  // `state_`: one, or none where it remembers nothing
  std::string remembered_;
};

}  // namespace rookery
