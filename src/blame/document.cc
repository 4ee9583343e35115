// SPDX-License-Identifier: Apache-2.0
#include "blame/document.h"

#include <cmath>
#include <string>

namespace presum::blame {
namespace {

using Json = nlohmann::ordered_json;

Json real(double value) {
  if (std::isnan(value)) return nullptr;
  return std::isinf(value) ? Json("inf") : Json(value);
}

Json compared(const Compared& of) {
  return {{"value", real(of.value)}, {"usual", real(of.usual)}, {"ratio", real(of.ratio())}};
}

template <class T>
Json known(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json sample(const Sample& of) {
  Json before = Json::array();
  for (const EarlierDraw& draw : of.before) {
    before.push_back({{"step", draw.step}, {"rank", draw.rank}, {"loss", compared(draw.loss)}});
  }
  return {{"index", known(of.index)},
          {"hash", known(of.hash)},
          {"other_ranks", of.others},
          {"draws_before", of.draws_before},
          {"before", std::move(before)}};
}

Json worker(const Worker& of) {
  Json micro = Json::array();
  for (const MicroBatch& m : of.micro) {
    micro.push_back({{"loss", real(m.loss)},
                     {"weight", real(m.weight)},
                     {"tokens", m.tokens},
                     {"targets", m.targets},
                     {"token_weight", real(m.token_weight)}});
  }
  Json layers = Json::array();
  for (const Layer& layer : of.layers) {
    layers.push_back({{"name", layer.name},
                      {"grad_norm", compared(layer.norm)},
                      {"grad_max", real(layer.peak)}});
  }
  Json samples = Json::array();
  for (const Sample& s : of.samples) samples.push_back(sample(s));
  return {{"rank", of.rank},
          {"host", of.host},
          {"loss", compared(of.loss)},
          {"grad_norm", compared(of.norm)},
          {"nonfinite", of.nonfinite},
          {"tokens", of.tokens},
          {"targets", of.targets},
          {"token_weight", real(of.token_weight)},
          {"micro_batches", of.micro_batches},
          {"micro", std::move(micro)},
          {"without_target", of.without_target},
          {"rows", of.rows},
          {"layers", std::move(layers)},
          {"samples", std::move(samples)}};
}

}  // namespace

Json document(const std::vector<Step>& steps) {
  Json out = Json::array();
  for (const Step& step : steps) {
    Json workers = Json::array();
    for (const Worker& w : step.workers) workers.push_back(worker(w));
    out.push_back({{"segment", step.key.model.segment},
                   {"model_index", step.key.model.model_index},
                   {"dp_group", step.key.model.dp_group},
                   {"step", step.key.step},
                   {"workers_expected", step.workers_expected},
                   {"loss", compared(step.loss)},
                   {"compared_with", step.compared_with},
                   {"workers", std::move(workers)}});
  }
  return out;
}

}  // namespace presum::blame
